"""Entropy-Adv (arXiv 2506.14758): a bonus where the policy was undecided.

# N = P*G rollouts of the global batch, rows of one prompt adjacent; B of this process; T padded
completion tokens
"""

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from .method import AdvantageEstimator, NonNegative
from .rollouts import Estimate, Rollouts

AtLeastOne = Annotated[float, Field(ge=1)]


def entropy_advantages(
    advantages_B: Tensor,
    entropies_BT: Tensor,
    mask_BT: Tensor,
    *,
    alpha: NonNegative = 0.4,
    kappa: AtLeastOne = 2.0,
) -> Tensor:
    """Add a bonus to GRPO's advantages where the policy was undecided: A + min(alpha * H, |A| /
    kappa).

    Args:
        advantages_B: (B,) advantages of this process's rollouts.
        entropies_BT: (B, T) entropy of the old policy at each token, in nats. Read where the
            advantage is not 0.
        mask_BT: (B, T), non-zero where a token counts.
        alpha: Weight of the entropy, at least 0; 0 is GRPO.
        kappa: The bonus is at most 1/kappa of the advantage; at least 1, so that no advantage
            changes its sign.

    Returns:
        (B, T) token advantages, 0 at padding; constants for the gradient.

    Source: arXiv 2506.14758; MINER's paper, appendix on the exploration baselines, and its
        published code.
    """
    base_B1 = advantages_B.unsqueeze(1)
    counts_BT = mask_BT.bool() & (base_B1 != 0)
    bonus_BT = torch.minimum(
        alpha * entropies_BT.detach().masked_fill(~counts_BT, 0.0), base_B1.abs() / kappa
    )
    return (base_B1 + bonus_BT).masked_fill(~mask_BT.bool(), 0.0)


def _estimate(rollouts: Rollouts, **knobs: Any) -> Estimate:
    entropies_BT = rollouts.score(("entropies",), rollouts.advantages_N != 0)["entropies"]
    advantages_B = rollouts.local(rollouts.advantages_N)
    advantages_BT = entropy_advantages(advantages_B, entropies_BT, rollouts.mask_BT, **knobs)
    return Estimate(advantages_BT, rollouts.token_means(advantages_BT))


ENTROPY_ADV = AdvantageEstimator(
    name="entropy_adv",
    label="Entropy-Adv",
    arxiv="2506.14758",
    function=entropy_advantages,
    estimate=_estimate,
    scores=frozenset({"entropies"}),
    acts_on=frozenset({"mixed"}),
    knobs=("alpha", "kappa"),
)
