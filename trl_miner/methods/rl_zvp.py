"""RL-ZVP (arXiv 2509.21880): in prompts without variance, a token's entropy gives its advantage, by
the outcome.

# N = P*G rollouts of the global batch; B of this process; T padded completion tokens
"""

from typing import Any

import torch
from torch import Tensor

from .method import AdvantageEstimator, NonNegative
from .rollouts import Estimate, Rollouts


def rl_zvp_advantages(
    entropies_BT: Tensor,
    mask_BT: Tensor,
    is_right_B: Tensor,
    is_wrong_B: Tensor,
    *,
    alpha: NonNegative = 0.1,
) -> Tensor:
    """Return alpha * H_t in all-right prompts, and -alpha * (max_k H_k - H_t) in all-wrong ones.

    A wrong rollout's most undecided token is not punished; the others are, the more the surer they
    were.

    Args:
        entropies_BT: (B, T) entropy of the old policy at each token, in nats. Read in those prompts
            alone.
        mask_BT: (B, T), non-zero where a token counts.
        is_right_B: (B,) bool, rollouts of all-right prompts.
        is_wrong_B: (B,) bool, rollouts of all-wrong prompts.
        alpha: Weight of the entropy, at least 0; 0 is GRPO.

    Returns:
        (B, T) token advantages, 0 at padding and in other prompts; constants for the gradient.

    Source: arXiv 2509.21880, as given in third-party implementations.
    """
    is_token_BT = mask_BT.bool() & (is_right_B | is_wrong_B).unsqueeze(1)
    entropies_BT = entropies_BT.detach().float().masked_fill(~is_token_BT, 0.0)  # none is negative
    shortfall_BT = entropies_BT.amax(dim=1, keepdim=True) - entropies_BT
    shaped_BT = torch.where(is_right_B.unsqueeze(1), entropies_BT, -shortfall_BT)
    return (alpha * shaped_BT).masked_fill(~is_token_BT, 0.0)


def _estimate(rollouts: Rollouts, **knobs: Any) -> Estimate:
    kinds = rollouts.kinds
    entropies_BT = rollouts.score(("entropies",), kinds.is_ph_N | kinds.is_nh_N)["entropies"]
    sides = rollouts.local(kinds.is_ph_N), rollouts.local(kinds.is_nh_N)
    advantages_BT = rl_zvp_advantages(entropies_BT, rollouts.mask_BT, *sides, **knobs)
    return Estimate(advantages_BT, rollouts.token_means(advantages_BT))


RL_ZVP = AdvantageEstimator(
    name="rl_zvp",
    label="RL-ZVP",
    arxiv="2509.21880",
    function=rl_zvp_advantages,
    estimate=_estimate,
    scores=frozenset({"entropies"}),
    acts_on=frozenset({"all_right", "all_wrong"}),
    knobs=("alpha",),
)
