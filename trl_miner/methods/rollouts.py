"""What the functions of a method take and return.

# N = P*G rollouts of the global batch, rows of one prompt adjacent; B of this process; T padded
completion tokens
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .distributed import World, accumulation_dtype
from .groups import GroupKinds


@dataclass(frozen=True, eq=False)
class Rollouts:
    """A generation batch as an estimator sees it."""

    rewards_N: Tensor  # total rewards of the global batch; NaN: unscorable
    advantages_N: Tensor  # the extrinsic advantages that TRL has computed from them
    mask_BT: Tensor  # non-zero where a token of this process counts
    kinds: GroupKinds  # of each rollout's group
    num_generations: int  # G
    # `score(names, is_row_N)` returns a dict of (B, T) tensors under the old policy, valid at least
    # on the rows asked for: "old_logps" and "entropies" in nats, "token_logits", "self_certainty";
    # and "mask", the tokens that have all of them. It may cost a forward over those rows, so ask
    # late and for few rows. Every process must ask.
    score: Callable[[Collection[str], Tensor], Mapping[str, Tensor]]
    world: World = field(default_factory=World)  # the processes that share the batch
    # For a method of homogeneous prompts: the estimate of the method of mixed ones. None: GRPO.
    base: "Estimate | None" = None
    # Returns (N,), an integer for each prompt, the same whenever it comes. Every process must call
    # it.
    prompt_keys: Callable[[], Tensor] | Any = None
    # Returns (N,), 1 for a correct rollout, 0 for a wrong one, as the verifier says; NaN:
    # unscorable.
    correct: Callable[[], Tensor] | Any = None
    # Returns (N,), how many rollouts of each one's prompt were correct in the generation batches
    # before.
    past_correct: Callable[[], Tensor] | Any = None
    # Returns the text of each of this process's B rollouts: of the tokens in `mask_BT`, without
    # special ones.
    texts: Callable[[], list[str]] | Any = None
    seed: int = 0  # for random choices that the processes must make alike; no two batches share it

    def local(self, values_N: Tensor) -> Tensor:
        """Return (B,), this process's rows of a vector of the global batch."""
        return values_N[self.world.local_slice(self.mask_BT.shape[0])]

    def to_tokens(self, values_N: Tensor) -> Tensor:
        """Return (B, T), each value at every token of its rollout, for this process's rows; 0 at
        padding."""
        return self.local(values_N).unsqueeze(1) * self.mask_BT.bool()

    def token_means(self, values_BT: Tensor) -> Tensor:
        """Return (N,) the means over the tokens of each rollout, 0 for one without. Every process
        must call it."""
        is_token_BT = self.mask_BT.bool()
        means_B = sum_tokens(values_BT, is_token_BT) / is_token_BT.sum(dim=1).clamp(min=1)
        return self.world.gather(means_B.to(self.advantages_N.dtype))


def sum_tokens(values_BT: Tensor, is_token_BT: Tensor) -> Tensor:
    """Return (B,) the sums over the tokens of each row, in the widest float of the device."""
    return values_BT.masked_fill(~is_token_BT, 0.0).sum(
        dim=1, dtype=accumulation_dtype(values_BT.device)
    )


@dataclass(frozen=True, eq=False)
class Estimate:
    """The advantages of a generation batch."""

    advantages_BT: Tensor  # of this process, 0 at padding
    advantages_N: Tensor  # their means over each rollout's tokens, for the logs
    metrics: dict[str, float] = field(default_factory=dict)  # numbers to log, by full name

    @classmethod
    def of_rollouts(
        cls, rollouts: Rollouts, advantages_N: Tensor, metrics: Mapping[str, float] | None = None
    ) -> "Estimate":
        """Return the estimate in which every token of a rollout has the rollout's advantage."""
        return cls(rollouts.to_tokens(advantages_N), advantages_N, {**(metrics or {})})

    def shares(self, kinds: GroupKinds, advantages_N: Tensor) -> tuple[dict[str, float], Tensor]:
        """Return which shares of the rollouts are of which kind, and which GRPO and the estimators
        use, by the name of the metric; and (N,) bool, the rollouts that are used.

        Args:
            kinds: Of the rollouts.
            advantages_N: (N,) GRPO's.
        """
        by_grpo_N = (advantages_N != 0) & kinds.is_grpo_N
        used_N = (self.advantages_N != 0) & (by_grpo_N | (self.advantages_N != advantages_N))
        shares = (
            torch.stack([*kinds, by_grpo_N, used_N & ~by_grpo_N, used_N])
            .float()
            .mean(dim=1)
            .tolist()
        )
        names = [f"groups/{kind}" for kind in ("ph", "he", "nh", "unscorable")]
        names += [f"rollouts/{kind}" for kind in ("grpo", "recovered", "used")]
        return dict(zip(names, shares, strict=True)), used_N


@dataclass(frozen=True, eq=False)
class Surrogate:
    """What the clipped loss sees in place of TRL's advantages and bounds."""

    advantages_BT: Tensor
    # bounds of the ratio pi / pi_old; None: those of the configuration
    clip_low: float | None = None
    clip_high: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # numbers to log, by full name
