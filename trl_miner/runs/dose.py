"""Which method pays which kind of prompt in a run, the dose asked for, and the dose reached: from settings and log.

The dose is how strongly the methods of all-right and all-wrong prompts act beside that of mixed ones. Without the
setting `dose`, and in runs older than it, MINER and the placebo have a cap: a dose in sums of abs(advantage), L1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..prompt_kinds import PromptKind
from .history import RunHistory
from .settings import DEFAULTS
from .shapes import number

KINDS = tuple(kind.setting for kind in (PromptKind.MIXED, PromptKind.ALL_RIGHT, PromptKind.ALL_WRONG))
# The kinds of prompts on which each estimator acts, where not on all; its record, which needs torch, says the same.
ACTS_ON = {
    **dict.fromkeys(("grpo", "entropy_adv", "maxrl", "quantile"), ("mixed",)),
    **dict.fromkeys(("miner", "length", "entropy", "constant", "placebo"), ("all_right",)),
    **{"ngrpo": ("mixed", "all_wrong"), "unlikeliness": ("mixed", "all_right"), "rl_zvp": ("all_right", "all_wrong")},
}
NONE = "none"
_MEASURED = {"gradient": "dose/share", "entropy": "dose/entropy"}  # by unit, the metric that says what was reached
_ASKED = {
    "gradient": "{} of the gradient's norm",
    "entropy": "an entropy of {} per token",
    "cap": "at most {} of the L1 mass",
    "none": "no limit",
    "": "",
}


@dataclass(frozen=True)
class Dose:
    """What the methods of all-right and all-wrong prompts were given to do, and did.

    Attributes:
        methods: The method of each of `KINDS` by name, or `NONE`.
        unit: "gradient", "entropy" or "cap"; "none": there is no limit; "": no other method than that of mixed
            prompts pays anything.
        target: The dose asked for, in the unit; None: not known.
        reached: (optimizer step, dose in the unit) where the log has it.
    """

    methods: Mapping[str, str]
    unit: str
    target: float | None
    reached: Sequence[tuple[float, float]]

    @property
    def asked(self) -> str:
        """The dose asked for, in words; empty: none."""
        return _ASKED[self.unit].format("" if self.target is None else self.show(self.target))

    def show(self, value: float) -> str:
        """Return a dose with its unit."""
        return f"{value:.3g} nats" if self.unit == "entropy" else f"{100 * value:.3g} %"


def dose_of(run: RunHistory) -> Dose:
    """Return the dose of a run from its recorded settings and its log, of this or an earlier version."""
    settings = run.settings
    methods = methods_by_kind(settings)
    credited = {methods["all_right"], methods["all_wrong"]} - {methods["mixed"], NONE}
    unit = settings.get("dose")
    if credited and unit in _MEASURED:
        targets = _values(run, "dose/target")
        target = targets[-1][1] if targets else _float(settings.get("dose_target"))
        return Dose(methods, str(unit), target, _values(run, _MEASURED[str(unit)]))
    for name in ("miner", "placebo"):
        if name in credited:
            cap = _float(settings.get(f"{name}_lambda_max", DEFAULTS["miner_lambda_max"]))
            return Dose(methods, "none" if cap is None else "cap", cap, _l1_shares(run, name))
    return Dose(methods, "none" if credited else "", None, [])


def dose_reached(doses: Sequence[Dose]) -> tuple[str, str]:
    """Return the mean dose of some runs of one method, and "first → last"; both are empty where none is recorded."""
    known = [[value for _, value in dose.reached] for dose in doses if dose.reached]
    if not known:
        return "", ""
    first, last, mean = (
        doses[0].show(fmean(numbers))
        for numbers in ([own[0] for own in known], [own[-1] for own in known], [*map(fmean, known)])
    )
    return mean, f"{first} → {last}"


def methods_by_kind(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the method of each of `KINDS` by the settings of a `RunHistory`."""
    names = settings.get("advantage_estimator", DEFAULTS["advantage_estimator"]).split("+")
    mixed = names.pop(0) if "mixed" in ACTS_ON.get(names[0], KINDS) else "grpo"
    found = {"mixed": mixed}
    for kind in KINDS[1:]:
        inherited = mixed if kind in ACTS_ON.get(mixed, KINDS) else NONE
        own = next((name for name in names if kind in ACTS_ON.get(name, KINDS)), inherited)
        if kind == "all_wrong" and "miner" in names and (_float(settings.get("miner_nh_scale")) or 0) > 0:
            own = "miner"
        set_to = settings.get(kind, own)
        found[kind] = NONE if set_to == "None" else set_to
    return found


def _l1_shares(run: RunHistory, name: str) -> list[tuple[float, float]]:
    """Return (optimizer step, share): the sum of abs(advantage) over the tokens that a method with a cap pays, as a
    share of that over the tokens of mixed prompts."""
    scales, others = (dict(_values(run, f"{name}/{part}")) for part in ("scale", "tau_ref"))
    masses = _values(run, f"{name}/tau_pos")
    return [(step, scales[step] * mass / others[step]) for step, mass in masses if step in scales and others.get(step)]


def _values(run: RunHistory, key: str) -> list[tuple[float, float]]:
    return [(step, value) for step, value in run.values(key) if value == value]  # NaN where it is no finite number


def _float(text: str | None) -> float | None:
    try:
        return None if text is None else number(float(text))
    except ValueError:
        return None
