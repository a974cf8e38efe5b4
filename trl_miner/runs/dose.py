"""Which method pays which kind of prompt in a run, the dose asked for, and the dose reached: from settings and log.

The dose is how strongly the methods of all-right and all-wrong prompts act beside that of mixed ones. Without
`dose_share`, MINER and the placebo have a cap: a dose in sums of abs(advantage), L1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..prompt_kinds import PromptKind
from .history import RunHistory
from .records import number
from .settings import DEFAULTS

KINDS = tuple(kind.setting for kind in (PromptKind.MIXED, PromptKind.ALL_RIGHT, PromptKind.ALL_WRONG))
# The kinds of prompts on which each estimator acts, where not on all; its record, which needs torch, says the same.
ACTS_ON = {
    **dict.fromkeys(("grpo", "entropy_adv", "f_grpo", "passk", "boundary_gate"), ("mixed",)),
    **dict.fromkeys(("miner", "entropy", "constant", "placebo"), ("all_right",)),
    **{"ngrpo": ("mixed", "all_wrong"), "unlikeliness": ("mixed", "all_right"), "rl_zvp": ("all_right", "all_wrong")},
}
NONE = "none"


@dataclass(frozen=True)
class Dose:
    """What the methods of all-right and all-wrong prompts were given to do, and did.

    Attributes:
        methods: The method of each of `KINDS` by name, or `NONE`.
        unit: "gradient" or "cap"; "none": there is no limit; "": no other method than that of mixed
            prompts acts.
        asked: The dose asked for, in words.
        target: The dose asked for, in the unit; None: not known.
        reached: (optimizer step, dose in the unit) where the log has it.
    """

    methods: Mapping[str, str]
    unit: str
    asked: str
    target: float | None = None
    reached: Sequence[tuple[float, float]] = ()


def dose_of(run: RunHistory) -> Dose:
    """Return the dose of a run from its recorded settings and its log."""
    settings = run.settings
    methods = methods_by_kind(settings)
    credited = {methods["all_right"], methods["all_wrong"]} - {methods["mixed"], NONE}
    if not credited:
        return Dose(methods, "", "")
    if settings.get("dose_share", DEFAULTS["dose_share"]) != "None":
        targets = _values(run, "dose/target")
        target = targets[-1][1] if targets else _float(settings["dose_share"])
        asked = "" if target is None else f"{_percent(target)} of the gradient's norm"
        return Dose(methods, "gradient", asked, target, _values(run, "dose/share"))
    capped = next((name for name in ("miner", "placebo") if name in credited), None)
    cap = _float(settings.get("miner_lambda_max", DEFAULTS["miner_lambda_max"])) if capped else None
    reached = _values(run, f"{capped}/l1_share")
    if cap is None:
        return Dose(methods, "none", "no limit", None, reached)
    asked = f"at most {_percent(cap)} of mixed prompts' sum of |advantage| in each batch"
    return Dose(methods, "cap", asked, cap, reached)


def methods_by_kind(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the method of each of `KINDS` by the settings of a `RunHistory`."""
    name = settings.get("advantage_estimator", DEFAULTS["advantage_estimator"])
    acts_on = ACTS_ON.get(name, KINDS)
    found = {"mixed": name if "mixed" in acts_on else "grpo"}
    for kind in KINDS[1:]:
        set_to = settings.get(kind, name if kind in acts_on else NONE)
        found[kind] = NONE if set_to == "None" else set_to
    return found


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _values(run: RunHistory, key: str) -> list[tuple[float, float]]:
    # NaN where it is no finite number; before a change of settings, another dose may have been asked for
    return [(step, value) for step, value in run.values(key) if value == value and step > run.since]


def _float(text: str | None) -> float | None:
    try:
        return None if text is None else number(float(text))
    except ValueError:
        return None
