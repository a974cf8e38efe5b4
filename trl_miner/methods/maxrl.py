"""MaxRL (arXiv 2602.02710): GRPO divided by the mean reward of the prompt, so that rare successes weigh more.

# N = P*G rollouts of the global batch, rows of one prompt adjacent
"""

from torch import Tensor

from .groups import group_mean
from .method import AdvantageEstimator
from .rollouts import per_rollout


def maxrl_advantages(rewards_N: Tensor, num_generations: int) -> Tensor:
    """Return (r_i - mean) / mean over the rollout's group.

    Args:
        rewards_N: (N,) total rewards of the global batch, at least 0; NaN: unscorable.
        num_generations: G, at least 2.

    Returns:
        (N,) advantages; 0 where the mean is not above 0, and for an unscorable rollout.

    Source: arXiv 2602.02710, as in prime-rl's code (PrimeIntellect-ai/prime-rl @ 0d6738f).
    """
    mean_N = group_mean(rewards_N.float(), num_generations)
    return ((rewards_N - mean_N) / mean_N).masked_fill(~(mean_N > 0), 0.0).nan_to_num(nan=0.0)


MAXRL = AdvantageEstimator(
    name="maxrl",
    label="MaxRL",
    arxiv="2602.02710",
    function=maxrl_advantages,
    estimate=per_rollout(maxrl_advantages),
    from_total_rewards=True,
    acts_on=frozenset({"mixed"}),
    reward_range=(0.0, None),
)
