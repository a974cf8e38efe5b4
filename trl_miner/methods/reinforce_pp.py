"""REINFORCE++ (arXiv 2501.03262): the return, whitened over the tokens of the global batch.

# N = P*G completions of the global batch, those of one prompt adjacent
"""

import torch
from torch import Tensor

from .groups import group_mean
from .method import AdvantageEstimator
from .rollouts import Rollouts


def whiten(returns_N: Tensor, token_counts_N: Tensor) -> Tensor:
    """Return (R_i - mean) / sqrt(var + 1e-8), over the tokens of all completions.

    Every token carries the return of its completion, so mean and unbiased variance weigh a
    completion by its number of tokens.

    Args:
        returns_N: (N,); NaN: unscorable, left out.
        token_counts_N: (N,) tokens that count in each completion, in float64.

    Returns:
        (N,) advantages; 0 for an unscorable completion.

    Source: arXiv 2501.03262, as in verl's code.
    """
    is_scored_N = ~returns_N.isnan()
    weights_N = token_counts_N * is_scored_N
    count = weights_N.sum().clamp(min=2)  # a single token: centered it is 0, so any divisor does
    returns_N = returns_N.nan_to_num(nan=0.0).to(token_counts_N)
    centered_N = returns_N - (weights_N * returns_N).sum() / count
    variance = (weights_N * centered_N.square()).sum() / (count - 1)
    return (centered_N * torch.rsqrt(variance + 1e-8) * is_scored_N).float()


def reinforce_pp(rollouts: Rollouts) -> Tensor:
    """Return (N,) the total rewards, whitened.

    Source: arXiv 2501.03262. MINER's paper does not say which variant its "R++" is.
    """
    return whiten(rollouts.rewards_N, rollouts.token_counts_N)


def reinforce_pp_baseline(rollouts: Rollouts) -> Tensor:
    """Return (N,) the total rewards less the mean of their group, whitened.

    Source: arXiv 2501.03262, its variant *REINFORCE++-baseline*.
    """
    rewards_N = rollouts.rewards_N.to(rollouts.token_counts_N)  # in float64
    means_N = group_mean(rewards_N, rollouts.num_generations)
    return whiten(rewards_N - means_N, rollouts.token_counts_N)


REINFORCE_PP = AdvantageEstimator(
    name="reinforce_pp",
    label="REINFORCE++",
    arxiv="2501.03262",
    function=reinforce_pp,
)
REINFORCE_PP_BASELINE = AdvantageEstimator(
    name="reinforce_pp_baseline",
    label="REINFORCE++ with the group's baseline",
    arxiv="2501.03262",
    function=reinforce_pp_baseline,
)
