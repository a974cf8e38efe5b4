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
from .method import REQUIRED, AdvantageEstimator, Estimate, Knob
from .rollouts import Rollouts

KWARGS = "advantage_estimator_kwargs"


def load_estimator(path: str, setting: str = "advantage_estimator") -> AdvantageEstimator:
    """Return the estimator at an import path, as a record of that name whose estimates are checked.

    Errors call the path by the name of its setting.

    Raises:
        ValueError: The path cannot be imported, or names something else.
    """
    target, name = import_object(setting, path), path.rpartition(".")[2]
    if not isinstance(target, AdvantageEstimator):
        if not callable(target) or inspect.isclass(target):
            raise ValueError(
                f"{setting} must name a function or an AdvantageEstimator: '{path}' is a "
                f"{type(target).__name__}. Define def {name}(rollouts, *, my_knob=1.0)."
            )
        target = AdvantageEstimator(name=path, label=path, estimate=target)
    signature = inspect.signature(target.estimate)
    parameters, kind = [*signature.parameters.values()], inspect.Parameter
    if not parameters or parameters[0].kind not in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD):
        raise ValueError(f"{setting}: '{path}' must take the rollouts as its first argument: got {name}{signature}.")
    knobs = target.knobs
    if target.function is None:  # then the parameters are the knobs; else they are also tensors, which are no settings
        by_name = [p.name for p in parameters[1:] if p.kind in (kind.POSITIONAL_OR_KEYWORD, kind.KEYWORD_ONLY)]
        knobs = {name: target.knobs.get(name, Knob()) for name in by_name}
    return replace(target, name=path, knobs=knobs, estimate=_checked(path, target.estimate))


def own_knobs(estimators: Sequence[AdvantageEstimator], kwargs: Any) -> dict[str, dict[str, Any]]:
    """Return all knobs of the estimators that `load_estimator` returned, by their names.

    Args:
        estimators: Their records.
        kwargs: The setting `advantage_estimator_kwargs`: a mapping, or None.

    Raises:
        ValueError: A knob is unknown, missing, of the wrong type or out of range.
    """
    kwargs = {} if kwargs is None else kwargs
    if not isinstance(kwargs, Mapping):
        raise ValueError(f"{KWARGS} must be a mapping of knobs: got {kwargs!r}. Write {{my_knob: 1.0}}.")
    if kwargs and not estimators:
        raise ValueError(
            f"{KWARGS} sets the knobs of an estimator of your own: got {dict(kwargs)}, and no estimator is an "
            f"import path. The knobs of the others are settings, such as miner_gamma."
        )
    known = {name for method in estimators for name in method.knobs}
    for name in kwargs:
        if name not in known:
            suggestion = did_you_mean(str(name), known)
            raise ValueError(f"{KWARGS}: unknown knob {name!r}.{suggestion} There are: {', '.join(sorted(known))}.")
    knobs: dict[str, dict[str, Any]] = {}
    for method in estimators:
        values = knobs[method.name] = {}
        for name, knob in method.knobs.items():
            values[name] = knob.convert(kwargs[name], f"{KWARGS}.") if name in kwargs else knob.default
            if values[name] is REQUIRED:
                raise ValueError(f"{KWARGS} must set {name}: '{method.name}' has no default for it.")
        method.check(values, f"{KWARGS}.")
    return knobs


def _checked(path: str, function: Callable[..., Any]) -> Callable[..., Estimate]:
    """Wrap an estimator so that it returns an `Estimate` of sound numbers, with zeros at padding."""

    @functools.wraps(function)
    def estimate(rollouts: Rollouts, **knobs: Any) -> Estimate:
        result = function(rollouts, **knobs)
        problem = _problem(result, rollouts)
        advantages = result.advantages if isinstance(result, Estimate) else result
        # Every process raises, so that none waits for the others.
        own = [problem is not None, isinstance(result, Estimate), advantages is None]
        is_W3 = rollouts.world.gather(torch.tensor([own], device=rollouts.mask_BT.device))
        if is_W3[:, 0].any():
            raise ValueError(f"advantage_estimator={path} {problem or 'failed on another process, which says why.'}")
        if (is_W3 != is_W3[0]).any():
            raise ValueError(
                f"advantage_estimator={path} must return the same kind of result on every process: some returned "
                f"a tensor, an Estimate or an Estimate without advantages, others not. Decide by what is global, such "
                f"as rollouts.kinds."
            )
        if advantages is None:
            return result
        advantages = advantages.detach().to(rollouts.advantages_N.dtype)
        if advantages.dim() == 2:
            advantages = advantages.masked_fill(~rollouts.mask_BT.bool(), 0.0)
        if isinstance(result, Estimate):
            return replace(result, advantages=advantages)
        gather = rollouts.token_means if advantages.dim() == 2 else rollouts.world.gather
        return Estimate(advantages, gather(advantages))

    return estimate


def _problem(result: Any, rollouts: Rollouts) -> str | None:
    """Return what is wrong with the result of an estimator."""
    advantages, mask_BT = result, rollouts.mask_BT.bool()
    if isinstance(result, Estimate):
        advantages = result.advantages
        if result.advantages_N.shape != rollouts.advantages_N.shape:
            return (
                f"must state a mean advantage for each rollout of the global batch: got advantages_N of shape "
                f"{tuple(result.advantages_N.shape)} for {len(rollouts.advantages_N)} rollouts. Use "
                f"rollouts.token_means."
            )
        if advantages is None:
            return None
    if not isinstance(advantages, Tensor):
        return f"must return a tensor or an Estimate: got {type(advantages).__name__}."
    if advantages.shape not in (mask_BT.shape, mask_BT.shape[:1]):
        return (
            f"must return the advantages of this process's rollouts, of shape (B,) or (B, T): got "
            f"{tuple(advantages.shape)} for B, T = {tuple(mask_BT.shape)}. rollouts.local(values_N) cuts out its rows."
        )
    is_bad = ~advantages.isfinite() & (mask_BT if advantages.dim() == 2 else True)
    if not is_bad.any():
        return None
    place = is_bad.nonzero()[0].tolist()
    return (
        f"must return finite advantages: got {advantages[tuple(place)].item()} at {place} ({int(is_bad.sum())} such). "
        f"An unscorable rollout, whose reward is NaN, gets 0."
    )
