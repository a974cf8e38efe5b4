"""Advantage estimators by name or import path, alone or one after another."""

from collections.abc import Callable, Sequence
from typing import Any

from ..importing import did_you_mean
from . import ESTIMATORS
from .method import AdvantageEstimator
from .own import load_estimator
from .rollouts import Estimate, Rollouts


def find_estimators(setting: Any) -> tuple[AdvantageEstimator, ...]:
    """Return the records that the setting `advantage_estimator` names: one, or one and others that rule some prompts.

    Args:
        setting: A name or an import path, several joined by "+", or a list.

    Raises:
        ValueError: An unknown name, a path that cannot be imported, or a combination that makes no sense.
    """
    names = setting.split("+") if isinstance(setting, str) else [*(setting or ())]
    if not names:
        raise _unknown(setting, "")
    estimators = tuple(_find(setting, str(name).strip()) for name in names)
    first, *rest = estimators
    ruled = [kind for method in rest for kind in method.rules]
    is_ordered = all(method.rules for method in rest) and len(ruled) == len(set(ruled))
    if rest and (not is_ordered or first.rules or first.keeps_trl):
        raise ValueError(
            f"advantage_estimator can combine one method other than grpo with miner, the method first: got "
            f"{setting!r}. MINER rules the prompts that are all right, the other the rest; grpo and MINER together "
            f"are plain miner."
        )
    return estimators


def _find(setting: Any, name: str) -> AdvantageEstimator:
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    if "." in name:
        return load_estimator(name)
    raise _unknown(setting, name)


def _unknown(setting: Any, name: str) -> ValueError:
    return ValueError(
        f"advantage_estimator must be one of {', '.join(sorted(ESTIMATORS))}, the import path of your own such as "
        f"my_lib.my_advantages, or one of them with MINER such as ucas+miner: got {setting!r}."
        f"{did_you_mean(name, ESTIMATORS)}"
    )


def estimate(
    estimators: Sequence[AdvantageEstimator], rollouts: Rollouts, knobs: Callable[[str], dict[str, Any]]
) -> Estimate:
    """Return the advantages of one method, or of a method and others that rule some prompts after it.

    Args:
        estimators: In the order of the setting.
        rollouts: The batch.
        knobs: Returns the settings of a method, given its name.
    """
    first, *rest = estimators
    result = first.estimate(rollouts, **knobs(first.name))
    for method in rest:
        result = method.estimate(rollouts, base=result, **knobs(method.name))
    return result
