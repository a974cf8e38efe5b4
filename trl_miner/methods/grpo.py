"""GRPO (arXiv 2402.03300), whose advantages TRL computes itself.

# N = P*G completions of the global batch, those of one prompt adjacent
"""

from torch import Tensor

from .groups import group_mean, grouped
from .method import AdvantageEstimator, PolicyLoss
from .rollouts import Rollouts


def group_relative_advantages(
    rewards_N: Tensor, num_generations: int, *, std_eps: float = 1e-4
) -> Tensor:
    """Return GRPO's advantages: A_i = (r_i - mean) / (std + eps), mean and sample std (n - 1) over
    the completion's group.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable, left out.
        num_generations: G, at least 2.
        std_eps: Added to the standard deviation, in reward units. TRL: 1e-4, the published MINER
            code: 1e-6.

    Returns:
        (N,) advantages; 0 for an unscorable completion.

    Source: arXiv 2402.03300, section 4.1.2; arXiv 2601.04731, equation 2.
    """
    centered_N = rewards_N - group_mean(rewards_N, num_generations)
    centered_PG = grouped(centered_N, num_generations)
    # of one scorable completion alone: centered it is 0, so any divisor does
    count_P = (~centered_PG.isnan()).sum(dim=1).clamp(min=2)
    std_P = (centered_PG.square().nansum(dim=1) / (count_P - 1)).sqrt()
    return (centered_N / (std_P.repeat_interleave(num_generations) + std_eps)).nan_to_num(nan=0.0)


def grpo(rollouts: Rollouts) -> Tensor:
    """Return (N,) TRL's own advantages."""
    return rollouts.advantages_N


GRPO = AdvantageEstimator(
    name="grpo",
    label="GRPO",
    arxiv="2402.03300",
    function=grpo,
    acts_on=("mixed",),
)
CLIP = PolicyLoss(name="clip", label="Clipped loss", arxiv="2402.03300", function=None)
