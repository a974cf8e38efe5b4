"""GRPO (arXiv 2402.03300), whose advantages TRL computes itself, and its variants that TRL or the
trainer implement.

# N = P*G rollouts of the global batch, rows of one prompt adjacent
"""

from torch import Tensor

from .groups import group_mean, grouped
from .method import AdvantageEstimator, Method, PolicyLoss
from .rollouts import Estimate, Rollouts


def group_relative_advantages(
    rewards_N: Tensor, num_generations: int, *, std_eps: float = 1e-4
) -> Tensor:
    """Return GRPO's advantages: A_i = (r_i - mean) / (std + eps), mean and sample std (n-1) over
    the rollout's group.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN where a rollout could not be scored.
        num_generations: G, at least 2.
        std_eps: Added to the standard deviation, in reward units. TRL: 1e-4, the published MINER
            code: 1e-6.

    Returns:
        (N,) advantages; 0 for an unscorable rollout.

    Source: arXiv 2402.03300, section 4.1.2; arXiv 2601.04731, equation 2.
    """
    mean_N = group_mean(rewards_N, num_generations)
    centered_N = rewards_N - mean_N
    centered_PG = grouped(centered_N, num_generations)
    # one scorable rollout: centered 0, so any divisor does
    count_P = (~centered_PG.isnan()).sum(dim=1).clamp(min=2)
    std_P = (centered_PG.square().nansum(dim=1) / (count_P - 1)).sqrt()
    return (centered_N / (std_P.repeat_interleave(num_generations) + std_eps)).nan_to_num(nan=0.0)


def keep(rollouts: Rollouts) -> Estimate:
    """Return TRL's own advantages: the same at every token of a rollout, so that the loss is TRL's
    bit for bit."""
    return Estimate.of_rollouts(rollouts, rollouts.advantages_N)


GRPO = AdvantageEstimator(
    name="grpo",
    label="GRPO",
    arxiv="2402.03300",
    estimate=keep,
    acts_on=frozenset({"mixed"}),
)
CLIP = PolicyLoss(name="clip", label="Clipped loss", arxiv="2402.03300")
GSPO = Method(name="gspo", label="GSPO", arxiv="2507.18071")
REINFORCE_ADA = Method(
    name="reinforce_ada",
    label="Adaptive sampling (Reinforce-Ada)",
    arxiv="2510.04996",
    settings={"rounds": "adaptive_sampling_rounds"},
)
THOMPSON = Method(name="thompson", label="Thompson selection (MoPPS)", arxiv="2507.04632")
GRESO = Method(name="greso", label="GRESO", arxiv="2506.02177")
DYNAMIC_SAMPLING = Method(
    name="dynamic_sampling", label="Dynamic sampling (DAPO)", arxiv="2503.14476"
)
