"""The record of a method: all that the trainer, the settings and the model card need to know."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from .micro_batch import MicroBatch, Surrogate
from .rollouts import Estimate, Rollouts

Kind = Literal["mixed", "all_right"]  # "mixed": all prompts but the all-right ones
AT_LEAST_0 = (0.0, math.inf)


@dataclass(frozen=True, eq=False, kw_only=True)
class Method:
    """What advantage estimators and policy losses have in common.

    The knobs of a method are the keyword-only parameters of its function, defaults included.
    """

    name: str  # the value of the setting, and the first part of its metrics' names
    label: str  # as papers write it
    arxiv: str | None = None  # None: no paper
    # knobs that fields of the configuration set, by knob; `advantage_estimator_kwargs` and
    # `policy_loss_kwargs` set the others
    settings: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # least, greatest


@dataclass(frozen=True, eq=False, kw_only=True)
class AdvantageEstimator(Method):
    """A method that computes the advantages of a generation batch."""

    # `function(rollouts, *, knobs)` returns (N,), one advantage for each completion of the global
    # batch; or (B, T), one for each token of this process; or an `Estimate`, which has metrics too.
    # Rows of prompts that another method has are not used.
    function: Callable[..., Tensor | Estimate]
    acts_on: frozenset[Kind] = frozenset({"mixed", "all_right"})  # to which it can give anything
    scores: frozenset[str] = frozenset()  # what it asks `Rollouts.score` for
    from_total_rewards: bool = False  # made of `rewards_N`, in place of TRL's advantages


@dataclass(frozen=True, eq=False, kw_only=True)
class PolicyLoss(Method):
    """A method that acts inside TRL's clipped loss: it replaces advantages or clipping bounds.

    Its numbers are those of a micro-batch of all processes, so TRL's micro-batches must stay.
    """

    function: Callable[..., Surrogate] | None = None  # `function(micro_batch, *, knobs)`; None: TRL's
    off_policy_only: bool = False  # does nothing while every probability ratio is 1


def knobs_of(method: Method) -> dict[str, inspect.Parameter]:
    """Return the knobs of a method by name, with default and type."""
    raise NotImplementedError


def read_knobs(setting: str, given: Any, methods: tuple[Method, ...]) -> dict[str, dict[str, Any]]:
    """Return the knobs that `advantage_estimator_kwargs` or `policy_loss_kwargs` sets, by the name
    of the method. Of methods with a knob of one name, all get it.

    Raises:
        ValueError: It is no mapping; a knob is unknown, has no value, or is out of its range.
    """
    raise NotImplementedError
