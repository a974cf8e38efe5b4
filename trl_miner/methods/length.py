"""Length preference: of the rollouts of an all-right prompt, shorter ones get a positive advantage.

# N = P*G rollouts of the global batch, rows of one prompt adjacent; B of this process; T padded completion tokens
"""

from torch import Tensor

from .groups import group_mean
from .grpo import keep
from .method import AdvantageEstimator, Knob
from .rollouts import Estimate, Rollouts


def length_advantages(tokens_N: Tensor, num_generations: int, *, weight: float = 0.1) -> Tensor:
    """Return weight * (mean - L_i) / mean over the rollout's group: below `weight`, and 0 on average.

    Args:
        tokens_N: (N,) number of tokens that count in each rollout.
        num_generations: G, at least 2.
        weight: Advantage that an empty rollout would get, at least 0; 0 is GRPO.

    Returns:
        (N,) advantages.

    Source: ours. Papers give a length penalty as a reward of all prompts.
    """
    mean_N = group_mean(tokens_N.float(), num_generations)
    return weight * (mean_N - tokens_N) / mean_N.clamp(min=1.0)


def _estimate(rollouts: Rollouts, *, weight: float) -> Estimate:
    if weight == 0:
        return keep(rollouts)
    tokens_N = rollouts.world.gather(rollouts.mask_BT.bool().sum(dim=1))
    advantages_N = length_advantages(tokens_N, rollouts.num_generations, weight=weight)
    return Estimate.of_rollouts(rollouts, advantages_N)


LENGTH = AdvantageEstimator(
    name="length",
    label="Length preference",
    function=length_advantages,
    estimate=_estimate,
    acts_on=frozenset({"all_right"}),
    knobs={
        "weight": Knob(
            "Length preference in all-right prompts: the advantage is this times the share by which a rollout is "
            "shorter than its prompt's mean. 0 is GRPO.",
            at_least=0,
        )
    },
)
