"""What the functions of a method take and return.

# N = P*G completions of the global batch, those of one prompt adjacent; B of this process
# T padded completion tokens
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Union

import torch
from torch import Tensor

from .groups import GroupKinds
from .processes import World, accumulation_dtype

Score = Literal["old_logps", "entropies", "token_logits", "self_certainty"]


@dataclass(frozen=True, eq=False)
class Rollouts:
    """A generation batch as an advantage estimator sees it."""

    rewards_N: Tensor  # total rewards of the global batch; NaN: unscorable
    advantages_N: Tensor  # GRPO's advantages, as TRL computes them from these
    is_correct_N: Tensor  # 1: correct, 0: wrong, NaN: unscorable
    mask_BT: Tensor  # non-zero where a token of this process counts
    kinds: GroupKinds  # of each completion's group
    num_generations: int  # G
    # `score(name, is_row_N)` returns (B, T) under the old policy at the sampling temperature, valid
    # at the tokens of the rows asked for: "old_logps", the log-probs of the sampled tokens, and
    # "entropies", both in nats; "token_logits", the logits of the sampled tokens;
    # "self_certainty", log-sum-exp less mean of the logits, in nats. It may cost a forward of these
    # rows, so ask late and for few of them. Every process must ask.
    score: Callable[[Score, Tensor], Tensor]
    world: World = field(default_factory=World)  # the processes that share the batch
    # For a method of all-right prompts: the estimate of the other prompts' method.
    base: Union["Estimate", None] = None

    def local(self, values_N: Tensor) -> Tensor:
        """Return (B, ...): this process's rows of (N, ...)."""
        return values_N[self.world.local_slice(len(self.mask_BT))]

    def to_tokens(self, values_N: Tensor) -> Tensor:
        """Return (B, T): each value at every token of its completion, 0 at padding."""
        return self.local(values_N)[:, None] * self.mask_BT.bool()

    def token_sums(self, values_BT: Tensor) -> Tensor:
        """Return (N,) the sums over the tokens of each completion. Every process must call."""
        return self.world.gather(sum_tokens(values_BT, self.mask_BT))

    def token_counts(self) -> Tensor:
        """Return (N,) how many tokens of each completion count. Every process must call."""
        return self.world.gather(self.mask_BT.bool().sum(dim=1))


@dataclass(frozen=True, eq=False)
class Estimate:
    """The advantages of a generation batch."""

    advantages_BT: Tensor  # of this process, 0 at padding
    advantages_N: Tensor  # their means over each completion's tokens
    metrics: Mapping[str, float] = field(default_factory=dict)  # to log, by full name
    # False: all tokens of a completion have one advantage, that of `advantages_N`, so that TRL can
    # be given (B,) advantages, as it computes them itself.
    is_token_level: bool = True


def sum_tokens(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return (B,) the sums over the tokens of each row, in the widest float of the device."""
    wide = accumulation_dtype(values_BT.device)
    return values_BT.masked_fill(~mask_BT.bool(), 0.0).sum(dim=1, dtype=wide)


def estimate_of(
    result: "Estimate | Tensor", rollouts: Rollouts, method: str
) -> Estimate:
    """Return what an estimator has returned as an `Estimate` of finite numbers, 0 at padding.

    Args:
        result: (N,) one advantage for each completion of the global batch; or (B, T) one for each
            token of this process; or an `Estimate`.
        rollouts: The batch. Every process must call.
        method: The estimator's name, for errors.

    Raises:
        ValueError: Another type or shape, or an advantage that is not finite.
    """
    raise NotImplementedError
