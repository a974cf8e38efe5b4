"""REINFORCE++ (arXiv 2501.03262): the return, whitened over the tokens of the global batch.

# N = P*G rollouts of the global batch, rows of one prompt adjacent; B of this process; T padded
completion tokens
"""

from functools import partial

import torch
from torch import Tensor

from .distributed import accumulation_dtype
from .groups import group_mean, grouped
from .method import AdvantageEstimator
from .rollouts import Estimate, Rollouts


def reinforce_pp_advantages(
    rewards_N: Tensor, tokens_N: Tensor, num_generations: int, *, subtract_group_mean: bool = False
) -> Tensor:
    """Return REINFORCE++'s advantages: the returns, whitened over all tokens of the global batch.

    A_i = (R_i - mean) / sqrt(var + 1e-8), R_i = r_i, or r_i less the mean of its group. Mean and
    unbiased variance weigh each rollout by its number of tokens, because every token carries the
    return of its rollout.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable, left out.
        tokens_N: (N,) number of tokens that count in each rollout.
        num_generations: G, at least 2.
        subtract_group_mean: The variant *REINFORCE++-baseline*.

    Returns:
        (N,) advantages, the same at every token of a rollout; 0 for an unscorable one.

    Raises:
        ValueError: Groups that are not whole.

    Source: arXiv 2501.03262, as in verl's code. MINER's paper does not say which variant its "R++"
        is.
    """
    grouped(rewards_N, num_generations, "rewards_N")
    returns_N = rewards_N.to(accumulation_dtype(rewards_N.device))
    if subtract_group_mean:
        returns_N = returns_N - group_mean(returns_N, num_generations)
    is_scored_N = ~returns_N.isnan()
    weights_N = tokens_N.to(returns_N.dtype) * is_scored_N
    count = weights_N.sum().clamp(min=2)  # a single token: centered 0, so any divisor does
    centered_N = returns_N - (weights_N * returns_N.nan_to_num()).sum() / count
    variance = (weights_N * centered_N.nan_to_num().square()).sum() / (count - 1)
    return (centered_N * torch.rsqrt(variance + 1e-8)).nan_to_num(nan=0.0).to(torch.float32)


def _estimate(rollouts: Rollouts, *, subtract_group_mean: bool = False) -> Estimate:
    tokens_N = rollouts.world.gather(rollouts.mask_BT.bool().sum(dim=1))
    advantages_N = reinforce_pp_advantages(
        rollouts.rewards_N,
        tokens_N,
        rollouts.num_generations,
        subtract_group_mean=subtract_group_mean,
    )
    return Estimate.of_rollouts(rollouts, advantages_N)


REINFORCE_PP = AdvantageEstimator(
    name="reinforce_pp",
    label="REINFORCE++",
    arxiv="2501.03262",
    estimate=_estimate,
    from_total_rewards=True,
)
REINFORCE_PP_BASELINE = AdvantageEstimator(
    name="reinforce_pp_baseline",
    label="REINFORCE++ with the group's baseline",
    arxiv="2501.03262",
    estimate=partial(_estimate, subtract_group_mean=True),
    from_total_rewards=True,
)
