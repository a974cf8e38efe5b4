"""Constant credit: every rollout of an all-right prompt gets the same advantage. A control for what credit chooses.

It is MINER with miner_intrinsic: constant, miner_credit: uniform and no cap.

# N = P*G rollouts of the global batch
"""

import torch

from .method import AdvantageEstimator
from .miner import CONSTANT_REWARD
from .rollouts import Estimate, Rollouts


def _estimate(rollouts: Rollouts) -> Estimate:
    advantages_N = torch.full_like(rollouts.advantages_N, CONSTANT_REWARD)
    return Estimate.of_rollouts(rollouts, advantages_N)


CONSTANT = AdvantageEstimator(
    name="constant",
    label="Constant credit on all-right prompts",
    estimate=_estimate,
    acts_on=frozenset({"all_right"}),
)
