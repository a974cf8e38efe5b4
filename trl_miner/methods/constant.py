"""Constant credit: every rollout of an all-right prompt gets the same advantage. A control for what credit chooses.

# N = P*G rollouts of the global batch
"""

import torch

from .method import AdvantageEstimator, Knob
from .rollouts import Estimate, Rollouts


def _estimate(rollouts: Rollouts, *, credit: float = 0.05) -> Estimate:
    advantages_N = torch.full_like(rollouts.advantages_N, credit)
    return Estimate(rollouts.local(advantages_N), advantages_N)


CONSTANT = AdvantageEstimator(
    name="constant",
    label="Constant credit on all-right prompts",
    estimate=_estimate,
    acts_on=frozenset({"all_right"}),
    knobs={
        "credit": Knob(
            "Advantage of every rollout of an all-right prompt. It is MINER with miner_intrinsic: constant, "
            "miner_credit: uniform and no cap.",
            at_least=0,
        )
    },
)
