"""The record of a method: all that the trainer, the configuration, the docs and the model card must know of it."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..setting import NONE, alternatives
from .rollouts import Estimate

# What `Rollouts.score` can be asked for.
Score = Literal["old_logps", "entropies", "token_logits", "self_certainty"]
# The kinds of prompts; the mixed ones include the unscorable.
Kind = Literal["mixed", "all_right", "all_wrong"]
# What a policy loss may take besides tensors and knobs.
CONTEXT = ("world", "epsilon_low", "epsilon_high", "generator")
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Knob:
    """A setting of a method: a keyword parameter of its function, which states the default and the type."""

    help: str = ""  # what it is, with the unit, for `trl-miner train --help`; without a percent sign
    at_least: float | str | None = None  # inclusive bounds: a number, or the name of another knob of the method
    at_most: float | str | None = None
    one_of: Collection[str] = ()  # the valid values
    hint: str = ""  # what an error adds; empty: the default
    name: str = ""  # of the parameter, as are the next two; the method's record fills them in
    default: Any = None
    type: Any = Any

    def of_parameter(self, parameter: inspect.Parameter) -> "Knob":
        """Return this knob with name, default and type of a function's parameter."""
        annotation, default = parameter.annotation, parameter.default
        if annotation is REQUIRED:
            annotation = type(default) if type(default) in (bool, int, float, str) else Any
        return replace(self, name=parameter.name, default=default, type=annotation)

    @property
    def is_optional(self) -> bool:
        """Whether None is a value."""
        return NONE in alternatives(self.type)

    def check(self, value: Any, values: Mapping[str, Any], prefix: str = "") -> None:
        """Raise ValueError for a value out of range; `values` has all knobs of the method, as bounds may be others."""
        if value is None and self.is_optional:
            return
        rule = None
        if value is None and (self.at_least is not None or self.at_most is not None):
            raise ValueError(f"{prefix}{self.name} must be a number: got None. The default is {self.default}.")
        if self.one_of and value not in self.one_of:
            rule = f"one of {', '.join(self.one_of)}"
        for words, limit, sign in (("at least", self.at_least, 1), ("at most", self.at_most, -1)):
            limit = values[limit] if isinstance(limit, str) else limit
            if limit is not None and not sign * value >= sign * limit:  # NaN is refused too
                rule = f"{words} {limit:g}" + (", or None" if self.is_optional else "")
        if rule is not None:
            hint = self.hint or f"The default is {self.default}."
            raise ValueError(f"{prefix}{self.name} must be {rule}: got {value!r}. {hint}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Method:
    """What everything else needs to know of a method."""

    name: str  # the value of the setting, and the prefix of the knobs and metrics
    label: str  # as papers write it
    arxiv: str | None = None  # None: no paper
    # Of tensors; its signature states the knobs' defaults and types. None: that of `estimate` does.
    function: Callable[..., Any] | None = None
    knobs: Mapping[str, Knob] = field(default_factory=dict)  # by the names of the function's parameters
    settings_of: str = ""  # another method whose settings its knobs are; empty: they are its own

    def setting(self, knob: str) -> str:
        """Return the name of the configuration's field that holds a knob."""
        return f"{self.settings_of or self.name}_{knob}"

    def __post_init__(self) -> None:
        if self.knobs:
            function = self.function or getattr(self, "estimate")  # noqa: B009 (only one kind of method has it)
            parameters = inspect.signature(function, eval_str=True).parameters
            knobs = {name: knob.of_parameter(parameters[name]) for name, knob in self.knobs.items()}
            object.__setattr__(self, "knobs", knobs)

    def check(self, values: Mapping[str, Any], prefix: str = "") -> None:
        """Raise ValueError for a knob out of range, of all knobs by name; the error calls it by prefix and name."""
        for name, knob in self.knobs.items():
            knob.check(values[name], values, prefix)


@dataclass(frozen=True, eq=False, kw_only=True)
class AdvantageEstimator(Method):
    """A method that computes the advantages of a generation batch."""

    # `estimate(rollouts, **knobs)`. Of prompts on which it does not act, or that another method has, its rows are not
    # used.
    estimate: Callable[..., Estimate]
    scores: frozenset[Score] = frozenset()  # what it asks of every row; a forward that TRL makes finds it, too
    wants_sampler_logps: bool = False  # whether the log-probs found while sampling spare it a forward
    per_token: bool = False  # whether advantages differ from token to token within a rollout
    # The kinds of prompts to which it can give an advantage. GRPO or another method does the rest.
    acts_on: frozenset[Kind] = frozenset({"mixed", "all_right", "all_wrong"})
    reads_past: bool = False  # whether it asks how prompts came out before: `Rollouts.past_correct`
    from_total_rewards: bool = False  # whether it makes them of the weighted sum of the rewards, in place of TRL's

    @property
    def metric_prefix(self) -> str:
        """The name before the slash in the names of its metrics: of an import path, the last part."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, eq=False, kw_only=True)
class PolicyLoss(Method):
    """A method that acts inside TRL's clipped loss: it replaces advantages or clipping bounds.

    `function(logps_BT, old_logps_BT, advantages_BT, mask_BT, **knobs, **context)` returns a `Surrogate`; the context
    is what it takes of `CONTEXT`.
    """

    off_policy_only: bool = False  # whether it does nothing while every probability ratio is 1
    fixed_micro_batches: str | None = None  # why TRL's micro-batches must stay; None: they need not
    spans_optimizer_step: bool = False  # whether one call must see all rows of an optimizer step

    @property
    def context(self) -> frozenset[str]:
        """What the function takes of `CONTEXT`."""
        if self.function is None:
            return frozenset()
        return frozenset(CONTEXT) & set(inspect.signature(self.function).parameters)
