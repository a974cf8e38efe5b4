"""Advantage estimators of the user's own, by import path.

An import path names a function or an `AdvantageEstimator`. The function takes the `Rollouts` and its knobs as keyword
arguments, and returns an `Estimate`, or a tensor with the advantages of this process's rollouts.

# N rollouts of the global batch; B of this process; T padded completion tokens
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..importing import did_you_mean, import_object
from .method import REQUIRED, AdvantageEstimator, Knob
from .rollouts import Estimate, Rollouts

KWARGS = "advantage_estimator_kwargs"


def load_estimator(path: str) -> AdvantageEstimator:
    """Import an advantage estimator. Modules in the current folder are found too.

    Args:
        path: The dotted path of a function or of an `AdvantageEstimator`, such as my_lib.my_advantages.

    Returns:
        A record that is named by the path, whose estimates are checked.

    Raises:
        ValueError: The path cannot be imported, or names something else.
    """
    target = import_object("advantage_estimator", path)
    if isinstance(target, AdvantageEstimator):
        record = target
    elif callable(target) and not inspect.isclass(target):
        record = AdvantageEstimator(name=path, label=path, estimate=target)
    else:
        raise ValueError(
            f"advantage_estimator must name a function or an AdvantageEstimator: '{path}' is a "
            f"{type(target).__name__}. Define def {path.rpartition('.')[2]}(rollouts, *, my_knob=1.0)."
        )
    knobs = {name: record.knobs.get(name, Knob()) for name in _keywords(path, record.function or record.estimate)}
    return replace(record, name=path, knobs=knobs, estimate=_checked(path, record.estimate))


def _keywords(path: str, function: Callable[..., Any]) -> list[str]:
    """Return the parameters that are knobs: all but the first one and `base`."""
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (inspect.Parameter.POSITIONAL_ONLY, positional):
        raise ValueError(
            f"advantage_estimator: '{path}' must take the rollouts as its first argument: got "
            f"{path.rpartition('.')[2]}{inspect.signature(function)}."
        )
    keywords = [p.name for p in parameters[1:] if p.kind in (positional, inspect.Parameter.KEYWORD_ONLY)]
    return [name for name in keywords if name != "base"]


def own_knobs(estimators: Sequence[AdvantageEstimator], kwargs: Any) -> dict[str, dict[str, Any]]:
    """Return the knobs of the user's own estimators.

    Args:
        estimators: Those that `load_estimator` returned.
        kwargs: The setting `advantage_estimator_kwargs`: a mapping, or None.

    Returns:
        By the name of the estimator, all its knobs; those that are not set have their defaults.

    Raises:
        ValueError: A knob is unknown, missing, of the wrong type or out of range.
    """
    kwargs = {} if kwargs is None else kwargs
    if not isinstance(kwargs, Mapping):
        raise ValueError(f"{KWARGS} must be a mapping of knobs: got {kwargs!r}. Write {{my_knob: 1.0}}.")
    if kwargs and not estimators:
        raise ValueError(
            f"{KWARGS} sets the knobs of an estimator of your own: got {dict(kwargs)}, and advantage_estimator has no "
            f"import path. The knobs of the others are settings, such as miner_gamma."
        )
    known = {name for method in estimators for name in method.knobs}
    for name in kwargs:
        if name not in known:
            knobs_there_are = f"The knobs are {', '.join(sorted(known))}." if known else "It has none."
            raise ValueError(f"{KWARGS}: unknown knob {name!r}.{did_you_mean(str(name), known)} {knobs_there_are}")
    knobs = {method.name: _with_defaults(method, kwargs) for method in estimators}
    for method in estimators:
        method.check(knobs[method.name], f"{KWARGS}.")
    return knobs


def _with_defaults(method: AdvantageEstimator, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    missing = [name for name, knob in method.knobs.items() if knob.default is REQUIRED and name not in kwargs]
    if missing:
        raise ValueError(f"{KWARGS} must set {', '.join(missing)}: '{method.name}' has no default for it.")
    return {
        name: knob.convert(kwargs[name], f"{KWARGS}.") if name in kwargs else knob.default
        for name, knob in method.knobs.items()
    }


def _checked(path: str, function: Callable[..., Any]) -> Callable[..., Estimate]:
    """Wrap an estimator so that it returns an `Estimate` whose numbers are known to be sound."""

    @functools.wraps(function)
    def estimate(rollouts: Rollouts, **knobs: Any) -> Estimate:
        result = function(rollouts, **knobs)
        problem = _problem(result, rollouts)
        # Every process raises, so that none waits for the others.
        is_bad_W = rollouts.world.gather(torch.tensor([problem is not None], device=rollouts.mask_BT.device))
        if is_bad_W.any():
            raise ValueError(f"advantage_estimator={path} {problem or 'failed on another process, which says why.'}")
        return _completed(result, rollouts)

    return estimate


def _problem(result: Any, rollouts: Rollouts) -> str | None:
    """Return what is wrong with the result of an estimator."""
    advantages = result.advantages if isinstance(result, Estimate) else result
    if isinstance(result, Estimate) and result.advantages_N.shape != rollouts.advantages_N.shape:
        return (
            f"must state a mean advantage for each rollout of the global batch: got advantages_N of shape "
            f"{tuple(result.advantages_N.shape)} for {len(rollouts.advantages_N)} rollouts. Use rollouts.token_means."
        )
    if isinstance(result, Estimate) and advantages is None:
        return None
    if not isinstance(advantages, Tensor):
        return f"must return a tensor or an Estimate: got {type(advantages).__name__}."
    mask_BT = rollouts.mask_BT.bool()
    if advantages.shape not in (mask_BT.shape, mask_BT.shape[:1]):
        return (
            f"must return the advantages of this process's rollouts, of shape (B,) or (B, T): got "
            f"{tuple(advantages.shape)} for B, T = {tuple(mask_BT.shape)}. rollouts.local(values_N) cuts out its rows."
        )
    is_bad = ~advantages.isfinite() & (mask_BT if advantages.dim() == 2 else True)
    if is_bad.any():
        place = is_bad.nonzero()[0].tolist()
        return (
            f"must return finite advantages: got {advantages[tuple(place)].item()} at {place} ({int(is_bad.sum())} "
            f"such). An unscorable rollout, whose reward is NaN, gets 0."
        )
    return None


def _completed(result: Any, rollouts: Rollouts) -> Estimate:
    """Turn a sound result into an `Estimate`, with zeros at padding."""
    advantages = result.advantages if isinstance(result, Estimate) else result
    if advantages is None:
        return result
    advantages = advantages.detach().to(rollouts.advantages_N.dtype)
    if advantages.dim() == 2:
        advantages = advantages.masked_fill(~rollouts.mask_BT.bool(), 0.0)
    if isinstance(result, Estimate):
        return replace(result, advantages=advantages)
    is_by_row = advantages.dim() == 1
    means_N = rollouts.world.gather(advantages) if is_by_row else rollouts.token_means(advantages)
    return Estimate(advantages, means_N)
