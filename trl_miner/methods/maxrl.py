"""MaxRL (arXiv 2602.02710): prompts weighted by the inverse of their pass rate.

# N = P*G completions of the global batch, those of one prompt adjacent
"""

import torch
from torch import Tensor

from .groups import group_mean
from .method import AdvantageEstimator
from .rollouts import Rollouts


def maxrl(rollouts: Rollouts) -> Tensor:
    """Return (N,) advantages (r_i - mean r) / p, with p the share of the prompt's completions that
    are correct.

    With rewards of 0 and 1, p is the mean reward, and the expected gradient is that of the log of
    the pass rate, whose series in the rate of failure it follows up to its term G - 1. GRPO divides
    by the standard deviation in place of p.

    Args:
        rollouts: The batch. Unscorable completions are left out and get 0. A prompt without a
            correct completion gets 0, whatever else its rewards say.

    Source: arXiv 2602.02710. It has rewards of 0 and 1 alone; by the pass rate other rewards, such
        as -1 and 1, make no difference to the weight of a prompt.
    """
    num_generations = rollouts.num_generations
    centered_N = rollouts.rewards_N - group_mean(rollouts.rewards_N, num_generations)
    pass_rate_N = group_mean(rollouts.is_correct_N, num_generations)
    return torch.where(pass_rate_N > 0, centered_N / pass_rate_N, 0.0).nan_to_num(nan=0.0)


MAXRL = AdvantageEstimator(
    name="maxrl",
    label="MaxRL",
    arxiv="2602.02710",
    function=maxrl,
    acts_on=("mixed",),
)
