"""Advantage estimators by name, alone or one after another."""

from collections.abc import Callable, Sequence
from typing import Any

from . import ESTIMATORS
from .method import AdvantageEstimator, Estimate, Rollouts


def parse_estimator(setting: Any) -> tuple[str, ...]:
    """Split the setting `advantage_estimator` into names: ("ucas", "miner") for "ucas+miner" or ["ucas", "miner"].

    Args:
        setting: A name, names joined by "+", or a list.

    Returns:
        One name, or the name of a method and those of others that each rule some kinds of prompts after it.

    Raises:
        ValueError: An unknown name, or a combination that makes no sense.
    """
    names = tuple(setting.split("+")) if isinstance(setting, str) else tuple(setting or ())
    names = tuple(str(name).strip() for name in names)
    if not names or any(name not in ESTIMATORS for name in names):
        raise ValueError(
            f"advantage_estimator must be one of {', '.join(sorted(ESTIMATORS))}, or one of them with MINER, such as "
            f"ucas+miner: got {setting!r}."
        )
    _check_combination(setting, [ESTIMATORS[name] for name in names])
    return names


def _check_combination(setting: Any, estimators: Sequence[AdvantageEstimator]) -> None:
    first, *rest = estimators
    ruled = [kind for method in rest for kind in method.rules]
    is_ordered = all(method.rules for method in rest) and len(ruled) == len(set(ruled))
    if rest and (not is_ordered or first.rules or first.name == "grpo"):
        raise ValueError(
            f"advantage_estimator can combine one method other than grpo with miner, the method first: got "
            f"{setting!r}. MINER rules the prompts that are all right, the other the rest; grpo and MINER together "
            f"are plain miner."
        )


def estimate(
    estimators: Sequence[AdvantageEstimator], rollouts: Rollouts, knobs: Callable[[str], dict[str, Any]]
) -> Estimate:
    """Compute the advantages of one method, or of a method and others that rule some prompts after it.

    Args:
        estimators: In the order of the setting.
        rollouts: The batch.
        knobs: Returns the settings of a method, given its name.

    Returns:
        The advantages of this process and statistics.
    """
    first, *rest = estimators
    result = first.estimate(rollouts, **knobs(first.name))
    for method in rest:
        result = method.estimate(rollouts, base=result, **knobs(method.name))
    return result
