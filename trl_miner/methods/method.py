"""What the functions of a method take and return, and the record of a method.

The record says all that the trainer, the configuration, the documentation and the model card must know of it.

# N = P*G rollouts of the global batch, rows of one prompt adjacent; B of this process; T padded completion tokens
"""

import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from ..distributed import World, accumulation_dtype
from .groups import GroupKinds

# What `Rollouts.score` can be asked for.
Score = Literal["old_logps", "entropies", "token_logits", "self_certainty"]
# What a policy loss may take besides tensors and knobs.
CONTEXT = ("world", "epsilon_low", "epsilon_high", "generator")
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True, eq=False)
class Rollouts:
    """A generation batch as an estimator sees it.

    Attributes:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable.
        advantages_N: (N,) the extrinsic advantages that TRL has computed from them.
        mask_BT: (B, T), non-zero where a token of this process counts.
        kinds: The kind of each rollout's group.
        num_generations: G.
        score: `score(names, is_row_N)` returns a dict of (B, T) tensors under the old policy, valid at least on the
            rows asked for: "old_logps" and "entropies" in nats, "token_logits", "self_certainty"; and "mask", the
            tokens that have all of them. It may cost a forward over those rows, so ask late and for few rows. Every
            process must ask.
        world: The processes that share the batch.
    """

    rewards_N: Tensor
    advantages_N: Tensor
    mask_BT: Tensor
    kinds: GroupKinds
    num_generations: int
    score: Callable[[Collection[str], Tensor], Mapping[str, Tensor]]
    world: World = field(default_factory=World)

    def local(self, values_N: Tensor) -> Tensor:
        """Return this process's rows of a global vector.

        Args:
            values_N: (N,), one value per rollout of the global batch.

        Returns:
            (B,), those of this process.
        """
        return values_N[self.world.local_slice(self.mask_BT.shape[0])]

    def token_means(self, values_BT: Tensor) -> Tensor:
        """Average over the tokens of each rollout. Every process must call it.

        Args:
            values_BT: (B, T) of this process.

        Returns:
            (N,) of the global batch; 0 for a rollout without tokens.
        """
        is_token_BT = self.mask_BT.bool()
        means_B = sum_tokens(values_BT, is_token_BT) / is_token_BT.sum(dim=1).clamp(min=1)
        return self.world.gather(means_B.to(self.advantages_N.dtype))


def sum_tokens(values_BT: Tensor, is_token_BT: Tensor) -> Tensor:
    """Sum over the tokens of each row, in the widest float of the device.

    Args:
        values_BT: (B, T).
        is_token_BT: (B, T) bool.

    Returns:
        (B,).
    """
    return values_BT.masked_fill(~is_token_BT, 0.0).sum(dim=1, dtype=accumulation_dtype(values_BT.device))


@dataclass(frozen=True, eq=False)
class Estimate:
    """The advantages of a generation batch.

    Attributes:
        advantages: (B, T) or (B,) for this process; None: TRL's own, unchanged.
        advantages_N: (N,) their means over each rollout's tokens, for the logs.
        metrics: Numbers to log, by full name.
    """

    advantages: Tensor | None
    advantages_N: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Surrogate:
    """What the clipped loss sees in place of TRL's advantages and bounds.

    Attributes:
        advantages_BT: (B, T).
        clip_low, clip_high: Bounds of the ratio pi / pi_old; None: those of the configuration.
        metrics: Numbers to log, by full name.
    """

    advantages_BT: Tensor
    clip_low: float | None = None
    clip_high: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Knob:
    """A setting of a method: a keyword parameter of its function, which states the default and the type.

    Attributes:
        help: A sentence with the unit, as `trl-miner train --help` shows it.
        details: What the documentation adds.
        at_least, at_most: Inclusive bounds: a number, or the name of another knob of the method.
        one_of: The valid values.
        hint: What an error adds, such as the paper's value.
        name, default, type: Of the parameter; the method's record fills them in.
    """

    help: str = ""
    details: str = ""
    at_least: float | str | None = None
    at_most: float | str | None = None
    one_of: Collection[str] = ()
    hint: str = ""
    name: str = ""
    default: Any = REQUIRED
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
        return type(None) in _alternatives(self.type)

    def check(self, value: Any, values: Mapping[str, Any], prefix: str = "") -> None:
        """Refuse a value out of range.

        Args:
            value: The knob's own.
            values: All knobs of the method, by name.
            prefix: What precedes the name in the caller's spelling.

        Raises:
            ValueError: The knob, its rule and the value.
        """
        if value is None and self.is_optional:
            return
        rule = None
        if self.one_of and value not in self.one_of:
            rule = f"one of {', '.join(self.one_of)}"
        for words, limit, sign in (("at least", self.at_least, 1), ("at most", self.at_most, -1)):
            limit = values[limit] if isinstance(limit, str) else limit
            if limit is not None and not sign * value >= sign * limit:  # NaN is refused too
                rule = f"{words} {limit:g}" + (", or None" if self.is_optional else "")
        if rule is not None:
            hint = self.hint or f"The default is {self.default}."
            raise ValueError(f"{prefix}{self.name} must be {rule}: got {value!r}. {hint}")


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


@dataclass(frozen=True, eq=False, kw_only=True)
class Method:
    """What everything else needs to know of a method.

    Attributes:
        name: The value of the setting, and the prefix of the knobs and metrics.
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

    def __post_init__(self) -> None:
        if self.knobs:
            function = self.function or getattr(self, "estimate")  # noqa: B009 (only one kind of method has it)
            parameters = inspect.signature(function, eval_str=True).parameters
            knobs = {name: knob.of_parameter(parameters[name]) for name, knob in self.knobs.items()}
            object.__setattr__(self, "knobs", knobs)

    def check(self, values: Mapping[str, Any], prefix: str = "") -> None:
        """Refuse knobs out of range.

        Args:
            values: All knobs by name.
            prefix: What precedes the names in the caller's spelling.

        Raises:
            ValueError: The knob, its rule and the value.
        """
        for name, knob in self.knobs.items():
            knob.check(values[name], values, prefix)


@dataclass(frozen=True, eq=False, kw_only=True)
class AdvantageEstimator(Method):
    """A method that computes the advantages of a generation batch.

    Attributes:
        estimate: `estimate(rollouts, **knobs)` returns an `Estimate`. An estimator that rules some prompts only also
            takes `base`, the estimate of the method before it (None: GRPO's).
        scores: What it asks of every row. The trainer takes these from a forward that TRL makes anyway.
        wants_sampler_logps: Whether the log-probs found while sampling spare it a forward.
        per_token: Whether advantages differ from token to token within a rollout.
        uniform_when: The knob values at which they do not.
        rules: The prompts that it rules after another method, of "all_right" and "all_wrong"; empty: it rules the
            whole batch, and can only come first.
        explain_credit: `explain_credit(rewards_N, old_logps_NT, mask_NT, advantages_NT, *, kinds, advantages_N,
            num_generations, **knobs)` returns what the token records show: a `CreditExplanation`.
        recorded_knobs, recorded_metrics: The knobs and metrics that the token records state.
    """

    estimate: Callable[..., Estimate]
    scores: frozenset[Score] = frozenset()
    wants_sampler_logps: bool = False
    per_token: bool = False
    uniform_when: Mapping[str, Any] = field(default_factory=dict)
    rules: frozenset[Literal["all_right", "all_wrong"]] = frozenset()
    explain_credit: "Callable[..., CreditExplanation] | None" = None
    recorded_knobs: tuple[str, ...] = ()
    recorded_metrics: tuple[str, ...] = ()

    @property
    def metric_prefix(self) -> str:
        """The name before the slash in the names of its metrics: of an import path, the last part."""
        return self.name.rpartition(".")[2]

    @property
    def reads_logits(self) -> bool:
        """Whether it needs logits as the model's head gives them."""
        return not self.scores.isdisjoint({"token_logits", "self_certainty"})

    def is_per_token(self, knobs: Mapping[str, Any]) -> bool:
        """Return whether, with these knobs, advantages differ from token to token within a rollout."""
        return self.per_token and not any(knobs[name] == value for name, value in self.uniform_when.items())


@dataclass(frozen=True, eq=False)
class CreditExplanation:
    """How the advantages of some rollouts came about.

    Attributes:
        is_ruled_N: (N,) bool, the rollouts whose advantages are the method's.
        weights_NT: (N, T) the credit weight of each token, 0 at padding.
        before_NT: (N, T) the advantages before calibration.
    """

    is_ruled_N: Tensor
    weights_NT: Tensor
    before_NT: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class PolicyLoss(Method):
    """A method that acts inside TRL's clipped loss: it replaces advantages or clipping bounds.

    `function(logps_BT, old_logps_BT, advantages_BT, mask_BT, **knobs, **context)` returns a `Surrogate`; the context
    is what it takes of `CONTEXT`.

    Attributes:
        off_policy_only: Whether it does nothing while every probability ratio is 1.
        fixed_micro_batches: Why micro-batches must hold the rows that TRL puts there; None: they need not.
        keeps_padding: Whether micro-batches must keep TRL's padding too.
        spans_optimizer_step: Whether one call must see all rows of an optimizer step.
        refuses: Settings of TRL that it cannot work with, and why.
    """

    off_policy_only: bool = False
    fixed_micro_batches: str | None = None
    keeps_padding: bool = False
    spans_optimizer_step: bool = False
    refuses: Mapping[str, str] = field(default_factory=dict)

    @property
    def context(self) -> frozenset[str]:
        """What the function takes of `CONTEXT`."""
        if self.function is None:
            return frozenset()
        return frozenset(CONTEXT) & set(inspect.signature(self.function).parameters)
