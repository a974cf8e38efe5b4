"""The record of a method: all that the trainer, the configuration and the model card must know of
it."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from .rollouts import Estimate

# What `Rollouts.score` can be asked for.
Score = Literal["old_logps", "entropies", "token_logits", "self_certainty"]
# The kinds of prompts; the mixed ones include the unscorable.
Kind = Literal["mixed", "all_right", "all_wrong"]
# The types of knobs, which are checked where a setting gives one.
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, eq=False, kw_only=True)
class Method:
    """What everything else needs to know of a method.

    A knob is a keyword parameter of its function, which states the default and the type.
    """

    name: str  # the value of the setting, and the first part of its metrics' names
    label: str  # as papers write it
    arxiv: str | None = None  # None: no paper
    function: Callable[..., Any] | None = None  # of tensors, which has the knobs
    # those that `advantage_estimator_kwargs` or `policy_loss_kwargs` sets
    knobs: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(
        default_factory=dict
    )  # fields of the configuration, by the knobs that they set

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The knobs by name, with default and type."""
        if self.function is None:
            return {}
        try:
            of_function = inspect.signature(self.function, eval_str=True).parameters
        except NameError:  # an annotation that is imported for type checkers alone
            of_function = inspect.signature(self.function).parameters
        return {name: of_function[name] for name in self.knobs}


@dataclass(frozen=True, eq=False, kw_only=True)
class AdvantageEstimator(Method):
    """A method that computes the advantages of a generation batch."""

    # `estimate(rollouts, **knobs)`. Of prompts on which it does not act, or that another method
    # has, its rows are not used.
    estimate: Callable[..., Estimate]
    # What it asks of every token, to tell tokens apart; a forward that TRL makes finds it, too.
    scores: frozenset[Score] = frozenset()
    # whether the log-probs found while sampling spare it a forward
    wants_sampler_logps: bool = False
    # The kinds of prompts to which it can give an advantage. GRPO or another method does the rest.
    acts_on: frozenset[Kind] = frozenset({"mixed", "all_right", "all_wrong"})
    reads_past: bool = False  # whether it asks how prompts came out before: `Rollouts.past_correct`
    # whether it makes them of the weighted sum of the rewards, in place of TRL's
    from_total_rewards: bool = False
    # whether it goes by all rollouts of a prompt besides: a choice among them would mislead it
    needs_whole_groups: bool = False

    @property
    def metric_prefix(self) -> str:
        """The name before the slash in the names of its metrics: of an import path, the last
        part."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, eq=False, kw_only=True)
class PolicyLoss(Method):
    """A method that acts inside TRL's clipped loss: it replaces advantages or clipping bounds.

    `function(logps_BT, old_logps_BT, advantages_BT, mask_BT, **knobs, **context)` returns a
    `Surrogate`.
    """

    # What it takes of the trainer: the processes, TRL's bounds, a random generator that is the same
    # on all processes.
    context: tuple[Literal["world", "epsilon_low", "epsilon_high", "generator"], ...] = ("world",)
    off_policy_only: bool = False  # whether it does nothing while every probability ratio is 1
    fixed_micro_batches: str | None = None  # why TRL's micro-batches must stay; None: they need not
    spans_optimizer_step: bool = False  # whether one call must see all rows of an optimizer step
