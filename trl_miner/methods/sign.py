"""Sign (arXiv 2605.07689): every right rollout gets 1 and every wrong one -1, whatever the others of its prompt did.

# N = P*G rollouts of the global batch
"""

from .method import AdvantageEstimator
from .rollouts import Estimate, Rollouts
from .w_reinforce import signed_advantages


def _estimate(rollouts: Rollouts) -> Estimate:
    advantages_N = signed_advantages(rollouts.rewards_N, positive=1.0, negative=1.0)  # 2r - 1
    return Estimate(rollouts.local(advantages_N), advantages_N)


SIGN = AdvantageEstimator(
    name="sign",
    label="Sign",
    arxiv="2605.07689",
    estimate=_estimate,
    from_total_rewards=True,
    reward_range=(0.0, 1.0),
)
