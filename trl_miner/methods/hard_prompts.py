"""Methods that push less, or not at all, at prompts that are solved or nearly so.

F-GRPO (arXiv 2602.06717), Pass@k training (arXiv 2503.19595) and the boundary gate (arXiv
2606.15455).

# N = P*G rollouts of the global batch, rows of one prompt adjacent
"""

from typing import Any

import torch
from torch import Tensor

from .groups import group_mean, grouped
from .method import AdvantageEstimator, NonNegative
from .rollouts import Estimate, Rollouts


def f_grpo_advantages(
    advantages_N: Tensor, correct_N: Tensor, num_generations: int, *, gamma: NonNegative = 1.0
) -> Tensor:
    """Return (1 - p)^gamma * A, with p the share of correct rollouts of the prompt.

    Args:
        advantages_N: (N,) GRPO's advantages of the global batch.
        correct_N: (N,) 1 for a correct rollout, 0 for a wrong one; NaN: unscorable, left out of p.
        num_generations: G, at least 2.
        gamma: Focus on hard prompts, at least 0; 0 is GRPO.

    Returns:
        (N,) advantages.

    Source: arXiv 2602.06717, the focal weight of its section 4. No code is published. The default
        of gamma is ours.
    """
    rates_N = group_mean(correct_N, num_generations).nan_to_num(nan=0.0)
    return advantages_N * (1 - rates_N).pow(gamma)


def _estimate_f_grpo(rollouts: Rollouts, **knobs: Any) -> Estimate:
    advantages_N = f_grpo_advantages(
        rollouts.advantages_N, rollouts.correct(), rollouts.num_generations, **knobs
    )
    return Estimate.of_rollouts(rollouts, advantages_N)


F_GRPO = AdvantageEstimator(
    name="f_grpo",
    label="F-GRPO",
    arxiv="2602.06717",
    function=f_grpo_advantages,
    estimate=_estimate_f_grpo,
    acts_on=frozenset({"mixed"}),
    knobs=("gamma",),
)


def passk_advantages(rewards_N: Tensor, num_generations: int, *, std_eps: float = 1e-6) -> Tensor:
    """Return (largest - second largest reward) / (std + eps) for the best rollout of each prompt, 0
    for all others.

    With rewards of 0 and 1 only a prompt's single correct rollout gets an advantage: k is G here,
    and what is right twice is sure to be found.

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
    # of one scored rollout: none
    margin_P = (best_P2[:, 0] - best_P2[:, 1]).nan_to_num(nan=0.0, posinf=0.0)
    found_PG = torch.zeros_like(rewards_PG).scatter(
        1, places_P2[:, :1], (margin_P / (std_P + std_eps)).unsqueeze(1)
    )
    return found_PG.flatten()


def _estimate_passk(rollouts: Rollouts) -> Estimate:
    return Estimate.of_rollouts(
        rollouts, passk_advantages(rollouts.rewards_N, rollouts.num_generations)
    )


PASSK = AdvantageEstimator(
    name="passk",
    label="Pass@k training",
    arxiv="2503.19595",
    estimate=_estimate_passk,
    from_total_rewards=True,
    acts_on=frozenset({"mixed"}),
)


def _estimate_boundary_gate(rollouts: Rollouts) -> Estimate:
    """Keep GRPO's advantages of prompts without a correct rollout in any earlier generation batch;
    0 elsewhere.

    One success among few rollouts means that Pass@k with a high k has nothing left to gain there,
    while updates go on to concentrate the policy. In a prompt's first batch with a success it still
    learns.

    Source: arXiv 2606.15455, its experiment that updates only problems without an observed success.
        The paper's own method, Bayesian Boundary Gating, gates by a posterior; no code of it is
        published, and this is not it.
    """
    is_new_N = rollouts.past_correct() == 0
    advantages_N = torch.where(is_new_N, rollouts.advantages_N, 0.0)
    return Estimate.of_rollouts(
        rollouts, advantages_N, {"boundary_gate/closed": (~is_new_N).float().mean().item()}
    )


BOUNDARY_GATE = AdvantageEstimator(
    name="boundary_gate",
    label="Boundary gate",
    arxiv="2606.15455",
    estimate=_estimate_boundary_gate,
    reads_past=True,
    acts_on=frozenset({"mixed"}),
)
