"""W-REINFORCE (arXiv 2506.01347): right rollouts are pushed up a little, wrong ones down in full, without a baseline.

# N = P*G rollouts of the global batch
"""

from typing import Any

from torch import Tensor

from .method import AdvantageEstimator, NonNegative
from .rollouts import Estimate, Rollouts

ROUNDING = 1e-6  # of a total reward, which is a weighted sum


def signed_advantages(rewards_N: Tensor, *, positive: NonNegative = 0.1, negative: NonNegative = 1.0) -> Tensor:
    """Return positive * r - negative * (1 - r): the weight of a right rollout, less that of a wrong one.

    Args:
        rewards_N: (N,) total rewards of the global batch, from 0 (wrong) to 1 (right); NaN: unscorable.
        positive: Weight of right rollouts, at least 0. With `negative` 0 and this 1, it is the paper's PSR.
        negative: Weight of wrong rollouts, at least 0. With `positive` 0 and this 1, it is the paper's NSR.

    Returns:
        (N,) advantages; 0 for an unscorable rollout.

    Source: arXiv 2506.01347; `compute_psr_nsr_outcome_advantage` of nangongrui-ngr/NGRPO @ e7a3804, which gives a
        reward between 0 and 1 its own value. Here it gets what lies between.
    """
    return (positive * rewards_N - negative * (1 - rewards_N)).nan_to_num(nan=0.0).float()


def _estimate(rollouts: Rollouts, **knobs: Any) -> Estimate:
    known_N = rollouts.rewards_N[~rollouts.rewards_N.isnan()]
    if ((known_N < 0) | (known_N > 1 + ROUNDING)).any():
        raise ValueError(
            f"w_reinforce needs total rewards from 0 (wrong) to 1 (right): got {known_N.min().item():.7g} to "
            f"{known_N.max().item():.7g}. Change the rewards, or the method."
        )
    advantages_N = signed_advantages(rollouts.rewards_N, **knobs)
    return Estimate.of_rollouts(rollouts, advantages_N)


W_REINFORCE = AdvantageEstimator(
    name="w_reinforce",
    label="W-REINFORCE",
    arxiv="2506.01347",
    function=signed_advantages,
    estimate=_estimate,
    from_total_rewards=True,
    knobs=("positive", "negative"),
)
