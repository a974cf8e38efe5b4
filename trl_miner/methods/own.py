"""Advantage estimators of the user's own: a function, by import path.

It takes the `Rollouts` and its knobs as keyword arguments, and returns an `Estimate`, or a tensor with the advantages
of this process's rollouts.

# N rollouts of the global batch; B of this process; T padded completion tokens
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..importing import did_you_mean, import_object
from ..setting import convert
from .method import REQUIRED, AdvantageEstimator, Estimate, Knob
from .rollouts import Rollouts

KWARGS = "advantage_estimator_kwargs"


def load_estimator(path: str, setting: str = "advantage_estimator") -> AdvantageEstimator:
    """Return the function at an import path as a record of that name, whose estimates are checked.

    Errors call the path by the name of its setting.

    Raises:
        ValueError: The path cannot be imported, or names something else.
    """
    target, name = import_object(setting, path), path.rpartition(".")[2]
    if not callable(target) or inspect.isclass(target):
        raise ValueError(
            f"{setting} must name a function: '{path}' is a {type(target).__name__}. Define "
            f"def {name}(rollouts, *, my_knob=1.0)."
        )
    parameters, kind = [*inspect.signature(target).parameters.values()], inspect.Parameter
    if not parameters or parameters[0].kind not in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD):
        raise ValueError(
            f"{setting}: '{path}' must take the rollouts as its first argument: got {name}{inspect.signature(target)}."
        )
    knobs = {p.name: Knob() for p in parameters[1:] if p.kind in (kind.POSITIONAL_OR_KEYWORD, kind.KEYWORD_ONLY)}
    return AdvantageEstimator(name=path, label=path, knobs=knobs, estimate=_checked(path, target))


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
            values[name] = knob.default
            if name in kwargs:
                values[name] = convert(f"{KWARGS}.{name}", kwargs[name], knob.type)
            elif knob.default is REQUIRED:
                raise ValueError(f"{KWARGS} must set {name}: '{method.name}' has no default for it.")
    return knobs


def _checked(path: str, function: Callable[..., Any]) -> Callable[..., Estimate]:
    """Wrap an estimator so that it returns an `Estimate` of sound numbers, with zeros at padding."""

    @functools.wraps(function)
    def estimate(rollouts: Rollouts, **knobs: Any) -> Estimate:
        result = function(rollouts, **knobs)
        given_BT, metrics = (result.advantages_BT, result.metrics) if isinstance(result, Estimate) else (result, {})
        mask_BT = rollouts.mask_BT.bool()
        problem = _problem(given_BT, mask_BT)
        if not rollouts.world.all(problem is None, mask_BT.device):  # every process raises, so that none waits
            raise ValueError(f"advantage_estimator={path} {problem or 'failed on another process, which says why.'}")
        advantages_BT = given_BT.detach().to(rollouts.advantages_N.dtype).masked_fill(~mask_BT, 0.0)
        return Estimate(advantages_BT, rollouts.token_means(advantages_BT), metrics)

    return estimate


def _problem(advantages_BT: Any, mask_BT: Tensor) -> str | None:
    """Return what is wrong with the advantages of an estimator."""
    if not isinstance(advantages_BT, Tensor):
        return f"must return a tensor or an Estimate: got {type(advantages_BT).__name__}."
    if advantages_BT.shape != mask_BT.shape:
        return (
            f"must return the advantages of the tokens of this process's rollouts, of shape (B, T) = "
            f"{tuple(mask_BT.shape)}: got {tuple(advantages_BT.shape)}. rollouts.to_tokens(values_N) makes them of "
            f"one value per rollout of the global batch."
        )
    is_bad_BT = ~advantages_BT.isfinite() & mask_BT
    if is_bad_BT.any():
        place = is_bad_BT.nonzero()[0].tolist()
        return (
            f"must return finite advantages: got {advantages_BT[tuple(place)].item()} at {place} "
            f"({int(is_bad_BT.sum())} such). An unscorable rollout, whose reward is NaN, gets 0."
        )
    return None
