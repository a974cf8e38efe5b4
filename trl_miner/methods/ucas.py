"""UCAS (arXiv 2510.10649): advantages scaled by the confidence in a completion, and taxed by the
confidence in a token.

# N = P*G completions of the global batch, those of one prompt adjacent; B of this process
# T padded completion tokens
"""

import torch
from torch import Tensor

from .groups import group_mean
from .grpo import group_relative_advantages
from .method import AdvantageEstimator
from .rollouts import Rollouts


def ucas(
    rollouts: Rollouts,
    *,
    beta_pos: float = 0.25,
    beta_neg: float = 0.35,
    token_coef: float = 0.05,
) -> Tensor:
    """Reward unsure correct completions more, punish sure wrong ones more, and tax every token
    that the model was sure of.

    c_i = sum_t [logsumexp(z_it) - mean(z_it)] is the confidence in a completion, c^_i its z-score
    in the group. GRPO's A_i becomes A_i * exp(-beta_pos * c^_i) where r_i is above its group's
    mean, A_i * exp(beta_neg * c^_i) elsewhere, less token_coef * l_it, the sampled token's logit
    scaled to [0, 1] over the global batch; in all-right and all-wrong groups, too. A completion
    with a positive advantage stays at 0 or above.

    Args:
        rollouts: The batch. Unscorable completions get 0.
        beta_pos, beta_neg, token_coef: At least 0; all 0 is GRPO.

    Returns:
        (B, T) token advantages.

    Source: arXiv 2510.10649; upstream's code (xvolcano02/UCAS @ b122ff2). The fork in MINER's
        repository ranks the confidence backwards and pairs logits with the wrong completions; we
        follow upstream.
    """
    rewards_N, G, is_token_BT = rollouts.rewards_N, rollouts.num_generations, rollouts.is_token_BT
    every_N = torch.ones_like(rewards_N, dtype=torch.bool)
    confidence_N = rollouts.token_sums(rollouts.score("self_certainty", every_N))
    confidence_N = confidence_N.masked_fill(rollouts.token_counts_N == 0, torch.nan)
    # a z-score in the group, which is what GRPO makes of rewards; 0 for a completion without tokens
    z_N = group_relative_advantages(confidence_N, G, std_eps=1e-6).to(rollouts.advantages_N.dtype)
    is_above_N = rewards_N > group_mean(rewards_N, G)
    factor_N = torch.where(is_above_N, -beta_pos * z_N, beta_neg * z_N).exp()
    scaled_B1 = rollouts.local(rollouts.advantages_N * factor_N)[:, None]

    logits_BT = rollouts.score("token_logits", every_N).float()
    extremes = [x * logits_BT.masked_fill(~is_token_BT, -x * torch.inf) for x in (-1, 1)]
    extremes_W2 = rollouts.world.gather(torch.stack([x.amax() for x in extremes])[None])
    lowest, highest = -extremes_W2[:, 0].amax(), extremes_W2[:, 1].amax()
    level_BT = (logits_BT - lowest) / (highest - lowest).clamp(min=1e-8)
    taxed_BT = scaled_B1 - token_coef * level_BT
    taxed_BT = torch.where(scaled_B1 > 0, taxed_BT.clamp(min=0.0), taxed_BT)
    return taxed_BT.masked_fill(rollouts.local(rewards_N).isnan()[:, None], 0.0)


UCAS = AdvantageEstimator(
    name="ucas",
    label="UCAS",
    arxiv="2510.10649",
    function=ucas,
)
