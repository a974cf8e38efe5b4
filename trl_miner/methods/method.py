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
    """A setting of a method: a keyword parameter of its function, which states the default and the type.

    Attributes:
        help: What it is, with the unit, as `trl-miner train --help` shows it. It must not contain a percent sign.
        at_least, at_most: Inclusive bounds: a number, or the name of another knob of the method.
        one_of: The valid values.
        hint: What an error adds; empty: the default.
        name, default, type: Of the parameter; the method's record fills them in.
    """

    help: str = ""
    at_least: float | str | None = None
    at_most: float | str | None = None
    one_of: Collection[str] = ()
    hint: str = ""
    name: str = ""
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
    """What everything else needs to know of a method.

    Attributes:
        name: The value of the setting, and the prefix of the knobs and metrics.
        settings_of: The name of another method whose settings its knobs are; empty: they are its own.
        label: The name as papers write it.
        arxiv: The arXiv id; None: no paper.
        function: The function of tensors, whose signature states the knobs' defaults and types; None: that of
            `estimate` does.
        knobs: Its settings, by the names of the function's parameters.
    """

    name: str
    label: str
    arxiv: str | None = None
    function: Callable[..., Any] | None = None
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    settings_of: str = ""

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
    """A method that computes the advantages of a generation batch.

    Attributes:
        estimate: `estimate(rollouts, **knobs)` returns an `Estimate`. Of prompts on which it does not act, or that
            another method has, its rows are not used.
        scores: What it asks of every row. The trainer takes these from a forward that TRL makes anyway.
        wants_sampler_logps: Whether the log-probs found while sampling spare it a forward.
        per_token: Whether advantages differ from token to token within a rollout.
        acts_on: The kinds of prompts to which it can give an advantage. GRPO or another method does the rest.
        from_total_rewards: Whether it makes its advantages of the weighted sum of the rewards, in place of TRL's.
    """

    estimate: Callable[..., Estimate]
    scores: frozenset[Score] = frozenset()
    wants_sampler_logps: bool = False
    per_token: bool = False
    acts_on: frozenset[Kind] = frozenset({"mixed", "all_right", "all_wrong"})
    from_total_rewards: bool = False

    @property
    def metric_prefix(self) -> str:
        """The name before the slash in the names of its metrics: of an import path, the last part."""
        return self.name.rpartition(".")[2]

    @property
    def reads_logits(self) -> bool:
        """Whether it needs logits as the model's head gives them."""
        return not self.scores.isdisjoint({"token_logits", "self_certainty"})


@dataclass(frozen=True, eq=False, kw_only=True)
class PolicyLoss(Method):
    """A method that acts inside TRL's clipped loss: it replaces advantages or clipping bounds.

    `function(logps_BT, old_logps_BT, advantages_BT, mask_BT, **knobs, **context)` returns a `Surrogate`; the context
    is what it takes of `CONTEXT`.

    Attributes:
        off_policy_only: Whether it does nothing while every probability ratio is 1.
        fixed_micro_batches: Why micro-batches must hold the rows that TRL puts there; None: they need not.
        spans_optimizer_step: Whether one call must see all rows of an optimizer step.
    """

    off_policy_only: bool = False
    fixed_micro_batches: str | None = None
    spans_optimizer_step: bool = False

    @property
    def context(self) -> frozenset[str]:
        """What the function takes of `CONTEXT`."""
        if self.function is None:
            return frozenset()
        return frozenset(CONTEXT) & set(inspect.signature(self.function).parameters)
