"""The record of a method: all that the trainer, the settings and the model card need to know."""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..common.names import did_you_mean

T = TypeVar("T")
Knobs = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Method:
    """What advantage estimators and policy losses have in common.

    The knobs of a method are the parameters of its function after the first, defaults included.
    """

    name: str  # the value of the setting, and the first part of its metrics' names
    label: str  # as papers write it
    arxiv: str | None = None  # None: no paper
    function: Any  # a function of the batch and the knobs; None: TRL's own
    # The knobs that fields of the configuration set, by knob. Those of `advantage_estimator_kwargs`
    # or `policy_loss_kwargs` are the others.
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def knobs(self) -> list[str]:
        """The names of the knobs that no field of the configuration sets."""
        names = [*inspect.signature(self.function).parameters][1:] if self.function else []
        return [name for name in names if name not in self.settings]


@dataclass(frozen=True, kw_only=True)
class AdvantageEstimator(Method):
    """A method that computes the advantages of a generation batch.

    `function(rollouts, *, knobs)` returns (N,), one advantage for each completion of the global
    batch; or (B, T), one for each token of this process; or an `Estimate`, which has metrics too.
    Rows of prompts that another method has are not used.
    """

    # The prompts to which it can give anything; "mixed" are all but the all-right ones.
    acts_on: tuple[str, ...] = ("mixed", "all_right")


@dataclass(frozen=True, kw_only=True)
class PolicyLoss(Method):
    """A method that acts inside TRL's clipped loss: it replaces advantages or clipping bounds.

    `function(micro_batch, *, knobs)` returns a `Surrogate`. It goes by the micro-batches of all
    processes, so those of TRL must stay as they are.
    """

    off_policy_only: bool = False  # does nothing while every probability ratio is 1


def find_knobs(
    setting: str, given: Any, methods: Sequence[Method], fields: Mapping[str, Any]
) -> dict[str, Knobs]:
    """Return the knobs of methods, by the method's name. What is not given keeps its default.

    Args:
        setting: `advantage_estimator_kwargs` or `policy_loss_kwargs`.
        given: Its value: a mapping, JSON of one, or None. A knob that several methods have goes to
            all of them.
        methods: Those that it is for.
        fields: The configuration's fields by name.

    Raises:
        ValueError: It is no mapping, or a knob is unknown.
    """
    try:
        given = json.loads(given) if isinstance(given, str) else dict(given or {})
    except (TypeError, ValueError):
        raise ValueError(f'{setting} is {given!r}. Write {{"my_knob": 1.0}}.') from None
    known = {knob: method for method in methods for knob in method.knobs}
    for knob in given:
        named(f"knob of {setting}", knob, known)
    return {
        method.name: {knob: _number(given[knob]) for knob in method.knobs if knob in given}
        | {knob: fields[name] for knob, name in method.settings.items() if name in fields}
        for method in methods
    }


def named(kind: str, name: str, known: Mapping[str, T]) -> T:
    """Return what has a name among the known.

    Raises:
        ValueError: Nothing has.
    """
    if name not in known:
        names = ", ".join(known) or "none"
        raise ValueError(
            f"No {kind} is named {name!r}.{did_you_mean(name, known)} There are: {names}."
        )
    return known[name]


def _number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value  # YAML reads 1e-3 as a text
    except ValueError:
        return value
