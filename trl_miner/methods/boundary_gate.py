"""Boundary gate (arXiv 2606.15455): no update of prompts that were answered right before.

# N = P*G rollouts of the global batch
"""

import torch

from .method import AdvantageEstimator
from .rollouts import Estimate, Rollouts


def _estimate(rollouts: Rollouts) -> Estimate:
    """Keep GRPO's advantages of prompts without a correct rollout in any earlier generation batch; 0 elsewhere.

    One success among few rollouts means that Pass@k with a high k has nothing left to gain there, while updates go on
    to concentrate the policy. In a prompt's first batch with a success it still learns.

    Source: arXiv 2606.15455, its experiment that updates only problems without an observed success. The paper's own
        method, Bayesian Boundary Gating, gates by a posterior; no code of it is published, and this is not it.
    """
    is_new_N = rollouts.past_correct() == 0
    advantages_N = torch.where(is_new_N, rollouts.advantages_N, 0.0)
    return Estimate.of_rollouts(rollouts, advantages_N, {"boundary_gate/closed": (~is_new_N).float().mean().item()})


BOUNDARY_GATE = AdvantageEstimator(
    name="boundary_gate",
    label="Boundary gate",
    arxiv="2606.15455",
    estimate=_estimate,
    reads_past=True,
    acts_on=frozenset({"mixed"}),
)
