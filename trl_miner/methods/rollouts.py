"""What the functions of a method take and return.

# N = P*G completions of the global batch, those of one prompt adjacent; B of this process
# T padded completion tokens
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from .groups import GroupKinds
from .processes import World, accumulation_dtype


@dataclass(frozen=True)
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
    score: Callable[[str, Tensor], Tensor]
    world: World = field(default_factory=World)  # the processes that share the batch
    # For a method of all-right prompts: the estimate of the other prompts' method.
    base: "Estimate | None" = None

    @cached_property
    def is_token_BT(self) -> Tensor:
        """(B, T) bool: whether a token of this process counts."""
        return self.mask_BT.bool()

    @cached_property
    def token_counts_N(self) -> Tensor:
        """(N,) how many tokens of each completion count. Every process must ask."""
        return self.token_sums(self.is_token_BT)

    def local(self, values_N: Tensor) -> Tensor:
        """Return (B, ...): this process's rows of (N, ...)."""
        return values_N[self.world.local_slice(len(self.mask_BT))]

    def to_tokens(self, values_N: Tensor) -> Tensor:
        """Return (B, T): each value at every token of its completion, 0 at padding."""
        return self.local(values_N)[:, None] * self.is_token_BT

    def token_sums(self, values_BT: Tensor) -> Tensor:
        """Return (N,) the sums over the tokens of each completion. Every process must call."""
        return self.world.gather(sum_tokens(values_BT, self.is_token_BT))


@dataclass(frozen=True)
class Estimate:
    """The advantages of a generation batch."""

    advantages_BT: Tensor  # of this process, 0 at padding
    advantages_N: Tensor  # their means over each completion's tokens
    metrics: Mapping[str, float] = field(default_factory=dict)  # to log, by full name
    # False: all tokens of a completion have one advantage, that of `advantages_N`, so that TRL can
    # be given (B,) advantages, as it computes them itself.
    is_token_level: bool = True


def sum_tokens(values_BT: Tensor, is_token_BT: Tensor) -> Tensor:
    """Return (B,) the sums over the tokens of each row, in the widest float of the device."""
    wide, size = accumulation_dtype(values_BT.device), block_size(values_BT)
    parts = zip(values_BT.split(size), is_token_BT.split(size), strict=True)
    sums = [torch.where(is_token, values, 0.0).to(wide).sum(dim=1) for values, is_token in parts]
    return torch.cat(sums)


def block_size(values_BT: Tensor) -> int:
    """Return how many rows to look at in one go. All at once keep several tensors of the batch's
    size alive, and take three times as long."""
    # what stays in a processor's cache, or keeps a GPU busy
    num_elements = 2**18 if values_BT.device.type == "cpu" else 2**22
    return 1 + num_elements // (1 + values_BT.shape[1])


def not_finite(values_N: Tensor) -> list[int]:
    """Return the rows of NaN and infinity."""
    return [row for row, value in enumerate(values_N.tolist()) if not math.isfinite(value)]


def estimate_of(result: Estimate | Tensor, rollouts: Rollouts, name: str) -> Estimate:
    """Return what an estimator has returned as an `Estimate` of its own memory, 0 at padding.

    Args:
        result: (N,) one advantage for each completion of the global batch; (B, T) one for each
            token of this process; or an `Estimate`.
        rollouts: The batch. Every process must call.
        name: The estimator's name, for errors.

    Raises:
        ValueError: Another type or shape, or advantages that are not finite. Every process raises.
    """
    given, metrics = result, {}
    if isinstance(result, Estimate):
        given, metrics = result.advantages_BT, {**result.metrics}
    given = torch.as_tensor(given).detach().to(rollouts.advantages_N)
    shapes = [rollouts.advantages_N.shape, rollouts.mask_BT.shape]
    if given.shape not in shapes:
        raise ValueError(
            f"The estimator {name} returned {given.shape}. It must return one advantage for each"
            f" completion of all processes, or for each token of this one: {shapes}."
        )
    is_token_level = given.dim() == 2
    if is_token_level:
        advantages_BT = given.masked_fill(~rollouts.is_token_BT, 0.0)
        sums_N = rollouts.token_sums(advantages_BT)
        advantages_N = (sums_N / rollouts.token_counts_N.clamp(min=1)).to(given)
    else:
        advantages_BT, advantages_N = rollouts.to_tokens(given), given
    if rows := not_finite(advantages_N):
        raise ValueError(
            f"The estimator {name} returned NaN or infinity for completion {rows[0]} of the batch."
            " Return 0 for a completion whose reward is NaN."
        )
    return Estimate(advantages_BT, advantages_N, metrics, is_token_level)


def merge(base: Estimate, own: Estimate, rollouts: Rollouts) -> Estimate:
    """Return `own` in the rows of all-right prompts and `base` in the others. It takes the memory of
    `own`."""
    is_ph_N, advantages_BT = rollouts.kinds.is_ph_N, own.advantages_BT
    other_rows = (~rollouts.local(is_ph_N)).nonzero().squeeze(1)
    for rows in other_rows.split(block_size(advantages_BT)):
        advantages_BT[rows] = base.advantages_BT[rows] * rollouts.is_token_BT[rows]
    return Estimate(
        advantages_BT,
        torch.where(is_ph_N, own.advantages_N, base.advantages_N),
        {**base.metrics, **own.metrics},
        base.is_token_level or (own.is_token_level and bool(is_ph_N.any())),
    )
