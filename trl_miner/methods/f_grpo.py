"""F-GRPO (arXiv 2602.06717): less push on prompts that are nearly solved.

# N = P*G completions of the global batch, those of one prompt adjacent
"""

from torch import Tensor

from .groups import group_mean
from .method import AdvantageEstimator
from .rollouts import Rollouts


def f_grpo(rollouts: Rollouts, *, gamma: float = 1.0) -> Tensor:
    """Return (N,) advantages (1 - p)^gamma * A_i, with GRPO's A_i and p the share of the prompt's
    completions that are correct.

    Args:
        rollouts: The batch. Unscorable completions are left out of p; a prompt of nothing else
            keeps GRPO's advantages.
        gamma: Focus on hard prompts, at least 0; 0 is GRPO. The default is ours.

    Source: arXiv 2602.06717, section 4. No code is published.
    """
    pass_rate_N = group_mean(rollouts.is_correct_N, rollouts.num_generations).nan_to_num(nan=0.0)
    return rollouts.advantages_N * (1 - pass_rate_N).pow(gamma)


F_GRPO = AdvantageEstimator(
    name="f_grpo",
    label="F-GRPO",
    arxiv="2602.06717",
    function=f_grpo,
    acts_on=("mixed",),
)
