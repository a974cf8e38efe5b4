"""NGRPO (arXiv 2509.18851): GRPO as if each prompt had one more rollout, which got the largest reward.

# N = P*G rollouts of the global batch, rows of one prompt adjacent
"""

from typing import Any

import torch
from torch import Tensor

from .groups import grouped
from .grpo import group_relative_advantages
from .method import AdvantageEstimator
from .rollouts import ROUNDING, Estimate, Rollouts


def ngrpo_advantages(
    rewards_N: Tensor, num_generations: int, *, max_reward: float = 1.0, virtual: int = 1, std_eps: float = 1e-6
) -> Tensor:
    """Return GRPO's advantages with mean and sample std over the group and `virtual` rollouts of the largest reward.

    A prompt whose rollouts are all wrong so gets negative advantages, and one whose rollouts all got the largest
    reward gets 0.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable.
        num_generations: G, at least 2.
        max_reward: The largest reward that a rollout can get.
        virtual: Number of rollouts added, at least 0; 0 is GRPO.
        std_eps: Added to the standard deviation, in reward units.

    Returns:
        (N,) advantages; 0 for an unscorable rollout.

    Source: arXiv 2509.18851; `compute_ngrpo_outcome_advantage` of nangongrui-ngr/NGRPO @ e7a3804. The paper's other
        part, unlike clipping of positive and negative advantages, is `epsilon` and `epsilon_high`.
    """
    rewards_PG = grouped(rewards_N.float(), num_generations, "rewards_N")
    added_PV = torch.full((len(rewards_PG), virtual), max_reward, device=rewards_N.device)
    together_N = torch.cat([rewards_PG, added_PV], dim=1).flatten()
    advantages_N = group_relative_advantages(together_N, num_generations + virtual, std_eps=std_eps)
    return advantages_N.view(len(rewards_PG), -1)[:, :num_generations].flatten()


def _estimate(rollouts: Rollouts, *, max_reward: float = 1.0, **knobs: Any) -> Estimate:
    if (largest := rollouts.rewards_N.nan_to_num(nan=-torch.inf).max().item()) > max_reward + ROUNDING:
        raise ValueError(
            f"ngrpo's max_reward must be the largest total reward that a rollout can get: got {max_reward:g}, and a "
            f"rollout with {largest:.7g}. Raise it in advantage_estimator_kwargs."
        )
    advantages_N = ngrpo_advantages(rollouts.rewards_N, rollouts.num_generations, max_reward=max_reward, **knobs)
    return Estimate.of_rollouts(rollouts, advantages_N)


NGRPO = AdvantageEstimator(
    name="ngrpo",
    label="NGRPO",
    arxiv="2509.18851",
    function=ngrpo_advantages,
    estimate=_estimate,
    from_total_rewards=True,
    acts_on=frozenset({"mixed", "all_wrong"}),
    knobs=("max_reward", "virtual"),
)
