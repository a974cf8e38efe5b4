"""Which method pays which kind of prompt in a run, and how strongly: from its settings and its log."""

from collections.abc import Mapping

from ..prompt_kinds import PromptKind
from .history import RunHistory
from .settings import DEFAULTS

KINDS = tuple(kind.setting for kind in (PromptKind.MIXED, PromptKind.ALL_RIGHT, PromptKind.ALL_WRONG))
# The kinds of prompts on which each estimator acts, where not on all; its record, which needs torch, says the same.
ACTS_ON = {
    **dict.fromkeys(("grpo", "entropy_adv", "f_grpo", "passk", "boundary_gate"), ("mixed",)),
    **dict.fromkeys(("miner", "entropy", "constant", "placebo"), ("all_right",)),
    **{"unlikeliness": ("mixed", "all_right"), "rl_zvp": ("all_right", "all_wrong")},
}
NONE = "none"


def methods_by_kind(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the method of each of `KINDS` by the settings of a `RunHistory`."""
    name = settings.get("advantage_estimator", DEFAULTS["advantage_estimator"])
    acts_on = ACTS_ON.get(name, KINDS)
    found = {"mixed": name if "mixed" in acts_on else "grpo"}
    for kind in KINDS[1:]:
        set_to = settings.get(kind, name if kind in acts_on else NONE)
        found[kind] = NONE if set_to == "None" else set_to
    return found


def l1_shares(run: RunHistory) -> list[tuple[float, float]]:
    """Return (optimizer step, dose) where the log has it: the sum of abs(advantage) on all-right and all-wrong prompts
    beside that on mixed ones, which MINER's and the placebo's cap limits. With `dose_share` there is none."""
    methods = methods_by_kind(run.settings)
    credited = {methods["all_right"], methods["all_wrong"]} - {methods["mixed"]}
    capped = next((name for name in ("miner", "placebo") if name in credited), None)
    if capped is None or run.settings.get("dose_share", "None") != "None":
        return []
    return [(step, v) for step, v in run.values(f"{capped}/l1_share") if v == v]  # NaN: no finite number
