"""Unlikeliness reward (arXiv 2506.02355): of the right rollouts of a prompt, the rarer ones are
rewarded more.

# N = P*G rollouts of the global batch, rows of one prompt adjacent; B of this process
"""

from typing import Any

from torch import Tensor

from .groups import grouped
from .grpo import group_relative_advantages
from .method import AdvantageEstimator, Share
from .rollouts import Estimate, Rollouts, sum_tokens


def unlikeliness_advantages(
    rewards_N: Tensor,
    logps_N: Tensor,
    num_generations: int,
    *,
    beta: Share = 0.25,
    std_eps: float = 1e-6,
) -> Tensor:
    """Return GRPO's advantages of the rewards r_i * (1 - beta * rank_i / G), rank 0 the least
    likely of the prompt.

    In an all-right prompt only the ranks differ. The z-score there is as large as in a mixed one,
    whatever beta is.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable.
        logps_N: (N,) mean log-prob of each rollout's tokens under the old policy, in nats.
        num_generations: G, at least 2.
        beta: Share of the reward that the likeliest rollouts lose, from 0 (GRPO) to 1.
        std_eps: Added to the standard deviation, in reward units.

    Returns:
        (N,) advantages; 0 for an unscorable rollout.

    Source: arXiv 2506.02355; `_compute_advantages` of AndreHe02/rewarding-unlikely-release @
        3e26ddd, whose configuration has beta 0.
    """
    order_PG = grouped(logps_N, num_generations, "logps_N").argsort(dim=1, stable=True)
    ranks_N = order_PG.argsort(dim=1).flatten()
    shaped_N = rewards_N.float() * (1 - beta * ranks_N / num_generations)
    return group_relative_advantages(shaped_N, num_generations, std_eps=std_eps)


def _estimate(rollouts: Rollouts, **knobs: Any) -> Estimate:
    is_ranked_N = ~rollouts.kinds.is_nh_N
    if (rollouts.rewards_N < 0).any():
        raise ValueError(
            "unlikeliness needs total rewards of at least 0, because a likelier rollout would lose"
            f" less of one below: got {rollouts.rewards_N.nan_to_num().min().item():.7g}. Change"
            " the rewards, or the method."
        )
    scores = rollouts.score(("old_logps",), is_ranked_N)
    is_token_BT = scores["mask"].bool() & rollouts.local(is_ranked_N).unsqueeze(1)
    means_B = sum_tokens(scores["old_logps"], is_token_BT) / is_token_BT.sum(dim=1).clamp(min=1)
    # one without tokens ranks last
    logps_N = rollouts.world.gather(means_B.to(rollouts.advantages_N.dtype))
    advantages_N = unlikeliness_advantages(
        rollouts.rewards_N, logps_N, rollouts.num_generations, **knobs
    )
    advantages_N = advantages_N.masked_fill(~is_ranked_N, 0.0)
    return Estimate.of_rollouts(rollouts, advantages_N)


UNLIKELINESS = AdvantageEstimator(
    name="unlikeliness",
    label="Unlikeliness reward",
    arxiv="2506.02355",
    function=unlikeliness_advantages,
    estimate=_estimate,
    from_total_rewards=True,
    wants_sampler_logps=True,
    acts_on=frozenset({"mixed", "all_right"}),
    knobs=("beta",),
)
