"""F-GRPO (arXiv 2602.06717): GRPO with less push on the prompts that are nearly solved.

# N = P*G rollouts of the global batch, rows of one prompt adjacent
"""

from typing import Any

from torch import Tensor

from .groups import group_mean
from .method import AdvantageEstimator
from .rollouts import Estimate, Rollouts


def f_grpo_advantages(advantages_N: Tensor, correct_N: Tensor, num_generations: int, *, gamma: float = 1.0) -> Tensor:
    """Return (1 - p)^gamma * A, with p the share of correct rollouts of the prompt.

    Args:
        advantages_N: (N,) GRPO's advantages of the global batch.
        correct_N: (N,) 1 for a correct rollout, 0 for a wrong one; NaN: unscorable, left out of p.
        num_generations: G, at least 2.
        gamma: Focus on hard prompts, at least 0; 0 is GRPO.

    Returns:
        (N,) advantages.

    Source: arXiv 2602.06717, the focal weight of its section 4. No code is published. The default of gamma is ours.
    """
    rates_N = group_mean(correct_N, num_generations).nan_to_num(nan=0.0)
    return advantages_N * (1 - rates_N).pow(gamma)


def _estimate(rollouts: Rollouts, **knobs: Any) -> Estimate:
    advantages_N = f_grpo_advantages(rollouts.advantages_N, rollouts.correct(), rollouts.num_generations, **knobs)
    return Estimate.of_rollouts(rollouts, advantages_N)


F_GRPO = AdvantageEstimator(
    name="f_grpo",
    label="F-GRPO",
    arxiv="2602.06717",
    function=f_grpo_advantages,
    estimate=_estimate,
    acts_on=frozenset({"mixed"}),
    knobs=("gamma",),
)
