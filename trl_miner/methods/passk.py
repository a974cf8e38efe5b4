"""Pass@k training (arXiv 2503.19595): the best rollout of a prompt is rewarded by how far it is above the second best.

# N = P*G rollouts of the global batch, rows of one prompt adjacent
"""

import torch
from torch import Tensor

from .groups import grouped
from .method import AdvantageEstimator
from .rollouts import Estimate, Rollouts


def passk_advantages(rewards_N: Tensor, num_generations: int, *, std_eps: float = 1e-6) -> Tensor:
    """Return (largest - second largest reward) / (std + eps) for the best rollout of each prompt, 0 for all others.

    With rewards of 0 and 1 only a prompt's single correct rollout gets an advantage: k is G here, and what is right
    twice is sure to be found.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable.
        num_generations: G, at least 2.
        std_eps: Added to the sample standard deviation of the group, in reward units.

    Returns:
        (N,) advantages, at least 0; 0 for an unscorable rollout.

    Source: arXiv 2503.19595; `compute_grpo_passk_outcome_advantage` of volcengine/verl @ b178a3cd5.
    """
    rewards_PG = grouped(rewards_N.float(), num_generations, "rewards_N")
    is_scored_PG = ~rewards_PG.isnan()
    best_P2, places_P2 = rewards_PG.masked_fill(~is_scored_PG, -torch.inf).topk(2, dim=1)
    centered_PG = rewards_PG - rewards_PG.nanmean(dim=1, keepdim=True)
    count_P = is_scored_PG.sum(dim=1).clamp(min=2)
    std_P = (centered_PG.square().nansum(dim=1) / (count_P - 1)).sqrt()
    margin_P = (best_P2[:, 0] - best_P2[:, 1]).nan_to_num(nan=0.0, posinf=0.0)  # of one scored rollout: none
    found_PG = torch.zeros_like(rewards_PG).scatter(1, places_P2[:, :1], (margin_P / (std_P + std_eps)).unsqueeze(1))
    return found_PG.flatten()


def _estimate(rollouts: Rollouts) -> Estimate:
    return Estimate.of_rollouts(rollouts, passk_advantages(rollouts.rewards_N, rollouts.num_generations))


PASSK = AdvantageEstimator(
    name="passk",
    label="Pass@k training",
    arxiv="2503.19595",
    estimate=_estimate,
    from_total_rewards=True,
    acts_on=frozenset({"mixed"}),
)
