"""Quantile baseline (QAE, arXiv 2509.22611): GRPO with a quantile of the prompt's rewards in place of their mean.

# N = P*G rollouts of the global batch, rows of one prompt adjacent
"""

import torch
from torch import Tensor

from .groups import group_mean, grouped
from .method import AdvantageEstimator, Knob
from .rollouts import per_rollout


def quantile_advantages(rewards_N: Tensor, num_generations: int, *, k: float = 0.4, std_eps: float = 1e-8) -> Tensor:
    """Return (r_i - b) / (std + eps), b the smallest reward of the group that a share k of its rollouts do not exceed.

    With rewards of 0 and 1, b is 0 where at most a share 1 - k is right, so that wrong rollouts get 0, and 1 above
    that, so that right ones do. The standard deviation is that of the group as a population: sqrt(p * (1 - p)).

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable.
        num_generations: G, at least 2.
        k: The share, from 0 to 1.
        std_eps: Added to the standard deviation, in reward units.

    Returns:
        (N,) advantages; 0 for an unscorable rollout.

    Source: arXiv 2509.22611, as given in third-party implementations.
    """
    rewards_N = rewards_N.float()
    rewards_PG = grouped(rewards_N, num_generations, "rewards_N")
    sorted_PG = rewards_PG.nan_to_num(nan=torch.inf).sort(dim=1).values  # unscorable ones last
    count_P = (~rewards_PG.isnan()).sum(dim=1)
    place_P = (k * count_P - 1e-6).ceil().clamp(min=1).long() - 1  # .7 * 10 is 7.000000000000001
    baseline_N = sorted_PG.gather(1, place_P.unsqueeze(1)).expand_as(rewards_PG).flatten()
    centered_N = rewards_N - group_mean(rewards_N, num_generations)
    std_N = group_mean(centered_N.square(), num_generations).sqrt()
    return ((rewards_N - baseline_N) / (std_N + std_eps)).nan_to_num(nan=0.0)


QUANTILE = AdvantageEstimator(
    name="quantile",
    label="Quantile baseline (QAE)",
    arxiv="2509.22611",
    function=quantile_advantages,
    estimate=per_rollout(quantile_advantages),
    from_total_rewards=True,
    acts_on=frozenset({"mixed"}),
    knobs={"k": Knob("QAE: the quantile of the prompt's rewards that is the baseline.", at_least=0, at_most=1)},
)
