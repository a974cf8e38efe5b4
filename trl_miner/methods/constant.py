"""Constant credit: every rollout of an all-right prompt gets the same advantage. A control for what credit chooses.

# N = P*G rollouts of the global batch
"""

import torch

from .method import AdvantageEstimator
from .rollouts import Estimate, Rollouts

# Of every rollout of an all-right prompt. A dose scales it; miner_intrinsic: constant, miner_credit: uniform and
# miner_lambda_max: null is the same with miner_constant_reward.
CREDIT = 0.05


def _estimate(rollouts: Rollouts) -> Estimate:
    advantages_N = torch.full_like(rollouts.advantages_N, CREDIT)
    return Estimate.of_rollouts(rollouts, advantages_N)


CONSTANT = AdvantageEstimator(
    name="constant",
    label="Constant credit on all-right prompts",
    estimate=_estimate,
    acts_on=frozenset({"all_right"}),
)
