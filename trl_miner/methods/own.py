"""Advantage estimators of the user's own: a function, or the record of a method, by import path; and
the knobs that are given as a mapping.

A function takes the `Rollouts` and its knobs as keyword arguments, and returns an `Estimate`, or a
tensor with the advantages of this process's rollouts. A record says besides what it asks of the old
policy, and on which prompts it acts.

# N rollouts of the global batch; B of this process; T padded completion tokens
"""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..common.importing import did_you_mean, import_object
from ..common.setting import convert
from .method import AdvantageEstimator, Estimate, Method
from .rollouts import Rollouts


def load_estimator(path: str, setting: str = "advantage_estimator") -> AdvantageEstimator:
    """Return the function or the record at an import path as a record of that name, whose estimates
    are checked.

    Errors call the path by the name of its setting.

    Raises:
        ValueError: The path cannot be imported, or names something else.
    """
    function = import_object(setting, path)
    if isinstance(function, AdvantageEstimator):
        return replace(function, name=path, estimate=_checked(path, function.estimate))
    if not callable(function):
        raise ValueError(
            f"{setting} must name a function or an AdvantageEstimator: '{path}' is a"
            f" {type(function).__name__}. Define "
            f"def {path.rpartition('.')[2]}(rollouts, *, my_knob=1.0)."
        )
    try:
        _, *parameters = inspect.signature(function).parameters.values()
    except ValueError as error:  # it takes nothing, or is built in
        raise ValueError(
            f"{setting} must name a function of the rollouts: '{path}' takes none. Define "
            f"def {path.rpartition('.')[2]}(rollouts, *, my_knob=1.0)."
        ) from error
    knobs = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    return AdvantageEstimator(
        name=path, label=path, knobs=knobs, function=function, estimate=_checked(path, function)
    )


def read_knobs(setting: str, given: Any, methods: Iterable[Method]) -> dict[str, Any] | None:
    """Return the knobs that a setting gives to methods, each in its type. Of methods with a knob of
    one name, all get it.

    Args:
        setting: `advantage_estimator_kwargs` or `policy_loss_kwargs`.
        given: Its value: a mapping, JSON of one, or None.
        methods: Those that it is for.

    Raises:
        ValueError: It is no mapping, or a knob is unknown, missing or of the wrong type.
    """
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise ValueError(f"{setting} must be JSON: got {given!r} ({error}).") from error
    if not isinstance(given, Mapping | None):
        raise ValueError(
            f"{setting} must be a mapping of knobs: got {given!r}. Write {{my_knob: 1.0}}."
        )
    parameters = {
        name: parameter for method in methods for name, parameter in method.parameters.items()
    }
    knobs = {}
    for name, value in (given or {}).items():
        if name not in parameters:
            hint = did_you_mean(str(name), parameters)
            raise ValueError(
                f"{setting}: unknown knob {name!r}.{hint} There are:"
                f" {', '.join(sorted(parameters)) or 'none'}."
            )
        knobs[name] = convert(f"{setting}.{name}", value, _type_of(parameters[name]))
    if missing := [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in knobs
    ]:
        raise ValueError(f"{setting} must set {', '.join(missing)}, which has no default.")
    return knobs or None


def _type_of(parameter: inspect.Parameter) -> Any:
    if parameter.annotation is not parameter.empty and not isinstance(parameter.annotation, str):
        return parameter.annotation
    return type(parameter.default) if type(parameter.default) in (bool, int, float, str) else Any


def _checked(path: str, function: Callable[..., Any]) -> Callable[..., Estimate]:
    """Wrap an estimator so that it returns an `Estimate` of sound numbers, with zeros at
    padding."""

    def estimate(rollouts: Rollouts, **knobs: Any) -> Estimate:
        result = function(rollouts, **knobs)
        given_BT, metrics = (
            (result.advantages_BT, result.metrics) if isinstance(result, Estimate) else (result, {})
        )
        mask_BT = rollouts.mask_BT.bool()
        shape = tuple(given_BT.shape) if isinstance(given_BT, Tensor) else type(given_BT).__name__
        if shape != tuple(mask_BT.shape):
            raise ValueError(
                f"advantage_estimator={path} must return the advantages of the tokens of this"
                f" process's rollouts, of shape (B, T) = {tuple(mask_BT.shape)}: got {shape}."
                " rollouts.to_tokens(values_N) makes them of one value per rollout of the global"
                " batch."
            )
        advantages_BT = given_BT.detach().to(rollouts.advantages_N.dtype).masked_fill(~mask_BT, 0.0)
        if not advantages_BT.isfinite().all():
            place = (~advantages_BT.isfinite()).nonzero()[0].tolist()
            raise ValueError(
                f"advantage_estimator={path} must return finite advantages: got"
                f" {advantages_BT[tuple(place)].item()} at {place}. An unscorable rollout, whose"
                " reward is NaN, gets 0."
            )
        return Estimate(advantages_BT, rollouts.token_means(advantages_BT), metrics)

    return estimate
