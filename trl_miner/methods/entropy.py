"""Entropy bonus on all-right prompts alone: what MINER amounts to on average, without MINER's
choice of completions.

# B completions of this process; T padded completion tokens
"""

import torch
from torch import Tensor

from .method import AdvantageEstimator
from .rollouts import Rollouts


def entropy(rollouts: Rollouts, *, weight: float = 1e-3) -> Tensor:
    """Return (B, T) weight * (-log p_t - H_t) in all-right prompts, which moves the policy as a
    bonus of weight * H_t on every token does.

    With s the tokens so far, E[(-log p(a|s) - H(s)) * grad log p(a|s)] = grad H(s): the policy
    gradient of these advantages is, without bias while on-policy, that of the entropy at the
    tokens' positions, and H is the baseline that makes them 0 on average. It takes no second loss,
    and one forward of the all-right completions. That later positions depend on earlier tokens is
    left out, as in the entropy bonus of TRL's loss.

    Args:
        rollouts: The batch.
        weight: Coefficient of the bonus, in advantage units per nat, at least 0; 0 is GRPO.

    Source: ours; the identity is the policy-gradient theorem for one token.
    """
    is_ph_N = rollouts.kinds.is_ph_N
    # entropies first: the forward that finds them finds log-probs of the same policy, too
    entropies_BT = rollouts.score("entropies", is_ph_N).float()
    surprise_BT = -rollouts.score("old_logps", is_ph_N).float() - entropies_BT
    return torch.where(rollouts.local(is_ph_N)[:, None], weight * surprise_BT, 0.0)


ENTROPY = AdvantageEstimator(
    name="entropy",
    label="Entropy bonus on all-right prompts",
    function=entropy,
    acts_on=("all_right",),
)
