"""Entropy-Adv (arXiv 2506.14758): a bonus where the policy was undecided.

# N = P*G completions of the global batch, those of one prompt adjacent; B of this process
# T padded completion tokens
"""

import torch
from torch import Tensor

from .method import AdvantageEstimator
from .rollouts import Rollouts


def entropy_adv(rollouts: Rollouts, *, alpha: float = 0.4, kappa: float = 2.0) -> Tensor:
    """Return (B, T) A_i + min(alpha * H_ij, |A_i| / kappa), with GRPO's A_i and the entropy H_ij of
    the old policy at each token, in nats.

    Args:
        rollouts: The batch.
        alpha: Weight of the entropy, at least 0; 0 is GRPO.
        kappa: The bonus is at most 1/kappa of the advantage; at least 1, so that no advantage
            changes its sign.

    Source: arXiv 2506.14758; MINER's paper, appendix on the exploration baselines.
    """
    base_B1 = rollouts.local(rollouts.advantages_N)[:, None]
    entropies_BT = rollouts.score("entropies", rollouts.advantages_N != 0).float()
    bonus_BT = torch.minimum(alpha * entropies_BT, base_B1.abs() / kappa)
    return torch.where(base_B1 != 0, base_B1 + bonus_BT, 0.0)


ENTROPY_ADV = AdvantageEstimator(
    name="entropy_adv",
    label="Entropy-Adv",
    arxiv="2506.14758",
    function=entropy_adv,
    acts_on=("mixed",),
)
