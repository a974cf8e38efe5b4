"""Entropy bonus on all-right prompts alone: what MINER amounts to on average, without MINER's
choice of rollouts.

# B rollouts of this process; T padded completion tokens
"""

from typing import Any

from torch import Tensor

from .method import AdvantageEstimator
from .rollouts import Estimate, Rollouts


def entropy_bonus_advantages(
    old_logps_BT: Tensor, entropies_BT: Tensor, mask_BT: Tensor, *, weight: float = 1e-3
) -> Tensor:
    """Return weight * (-log p_t - H_t), which moves the policy as a bonus of weight * H_t on every
    token does.

    With s the tokens so far, E[(-log p(a|s) - H(s)) * grad log p(a|s)] = grad H(s): the policy
    gradient of these advantages is, without bias while on-policy, that of the entropy at the
    tokens' positions, and H is the baseline that makes them 0 on average. It takes no second loss,
    and one forward over the all-right rollouts. That later positions depend on earlier tokens is
    left out, as in the entropy bonus of TRL's loss.

    Args:
        old_logps_BT: (B, T) log-probs of the sampled tokens under the old policy at the sampling
            temperature, in nats.
        entropies_BT: (B, T) entropy of the same policy at each token, in nats.
        mask_BT: (B, T), non-zero where a token counts.
        weight: Coefficient of the bonus, in advantage units per nat, at least 0; 0 is GRPO.

    Returns:
        (B, T) token advantages, 0 at padding; constants for the gradient.

    Source: ours; the identity is the policy-gradient theorem for one token.
    """
    return (
        (weight * (-old_logps_BT - entropies_BT)).detach().float().masked_fill(~mask_BT.bool(), 0.0)
    )


def _estimate(rollouts: Rollouts, **knobs: Any) -> Estimate:
    is_ph_N = rollouts.kinds.is_ph_N
    scores = rollouts.score(("old_logps", "entropies"), is_ph_N)
    mask_BT = scores["mask"].bool() & rollouts.local(is_ph_N).unsqueeze(1)
    advantages_BT = entropy_bonus_advantages(
        scores["old_logps"], scores["entropies"], mask_BT, **knobs
    )
    return Estimate(advantages_BT, rollouts.token_means(advantages_BT))


ENTROPY = AdvantageEstimator(
    name="entropy",
    label="Entropy bonus on all-right prompts",
    estimate=_estimate,
    scores=frozenset({"entropies"}),
    acts_on=frozenset({"all_right"}),
    settings={"weight": "entropy_weight"},
)
