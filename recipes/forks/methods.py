"""Published methods as estimators of one's own: `advantage_estimator: methods.rl_zvp`, from this
folder. The package has none of them: in forks they did no better than what it has.

# N = P*G completions of the global batch, those of one prompt adjacent; B of this process; T tokens
"""

import torch
from torch import Tensor

from trl_miner.methods.groups import grouped
from trl_miner.methods.rollouts import Rollouts


def passk(rollouts: Rollouts, *, std_eps: float = 1e-6) -> Tensor:
    """Return (N,) (largest - second largest reward) / (std + eps) for the best completion of each
    prompt, 0 for all others: with rewards of 0 and 1, only a single correct one gets any.

    Source: arXiv 2503.19595; `compute_grpo_passk_outcome_advantage` of volcengine/verl @ b178a3cd5.
    """
    rewards_PG = grouped(rollouts.rewards_N.float(), rollouts.num_generations).nan_to_num(nan=0.0)
    best_P2, places_P2 = rewards_PG.topk(2, dim=1)
    margins_P1 = (best_P2[:, :1] - best_P2[:, 1:]) / (rewards_PG.std(dim=1, keepdim=True) + std_eps)
    return torch.zeros_like(rewards_PG).scatter(1, places_P2[:, :1], margins_P1).flatten()


def unlikeliness(rollouts: Rollouts, *, beta: float = 0.25, std_eps: float = 1e-6) -> Tensor:
    """Return (N,) GRPO's advantages of the rewards r_i * (1 - beta * rank_i / G), rank 0 the least
    likely completion of the prompt, by its mean log-prob per token.

    In an all-right prompt only the ranks differ, and the z-score is as large as in a mixed one.

    Source: arXiv 2506.02355; AndreHe02/rewarding-unlikely-release @ 3e26ddd.
    """
    is_ranked_N = ~rollouts.kinds.is_nh_N
    logps_BT = rollouts.score("old_logps", is_ranked_N)
    means_N = rollouts.token_sums(logps_BT) / rollouts.token_counts_N.clamp(min=1)
    ranks_PG = grouped(means_N, rollouts.num_generations).argsort(dim=1, stable=True).argsort(dim=1)
    rewards_PG = grouped(rollouts.rewards_N.float(), rollouts.num_generations)
    shaped_PG = rewards_PG * (1 - beta * ranks_PG / rollouts.num_generations)
    centered_PG = shaped_PG - shaped_PG.mean(dim=1, keepdim=True)
    advantages_N = (centered_PG / (shaped_PG.std(dim=1, keepdim=True) + std_eps)).flatten()
    return advantages_N.nan_to_num(nan=0.0).masked_fill(~is_ranked_N, 0.0)


def rl_zvp(rollouts: Rollouts, *, alpha: float = 0.1) -> Tensor:
    """Return (B, T) alpha * H_t in all-right prompts, -alpha * (max_k H_k - H_t) in all-wrong ones,
    GRPO's advantages elsewhere; H_t is the entropy of the old policy at a token, in nats.

    Source: arXiv 2509.21880, as given in third-party implementations.
    """
    right_N, wrong_N = rollouts.kinds.is_ph_N, rollouts.kinds.is_nh_N
    entropies_BT = rollouts.score("entropies", right_N | wrong_N)
    entropies_BT = entropies_BT.masked_fill(~rollouts.is_token_BT, 0.0)
    shortfall_BT = entropies_BT - entropies_BT.amax(dim=1, keepdim=True)
    of_wrong_BT = torch.where(rollouts.local(wrong_N)[:, None], alpha * shortfall_BT, 0.0)
    own_BT = torch.where(rollouts.local(right_N)[:, None], alpha * entropies_BT, of_wrong_BT)
    is_own_B1 = rollouts.local(right_N | wrong_N)[:, None]
    return torch.where(is_own_B1, own_BT, rollouts.to_tokens(rollouts.advantages_N))
