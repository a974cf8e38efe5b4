"""UCAS (arXiv 2510.10649): advantages scaled by the confidence in a rollout and taxed by the
confidence in a token.

# N = P*G rollouts of the global batch, rows of one prompt adjacent; B of this process; T padded
completion tokens
"""

from typing import Any

import torch
from torch import Tensor

from .distributed import World
from .groups import group_mean
from .grpo import group_relative_advantages
from .method import AdvantageEstimator, NonNegative
from .rollouts import Estimate, Rollouts, sum_tokens


def ucas_advantages(
    rewards_N: Tensor,
    advantages_N: Tensor,
    token_logits_BT: Tensor,
    self_certainty_BT: Tensor,
    mask_BT: Tensor,
    *,
    num_generations: int,
    beta_pos: NonNegative = 0.25,
    beta_neg: NonNegative = 0.35,
    token_coef: NonNegative = 0.05,
    world: World | None = None,
) -> Tensor:
    """Reward unsure right answers more, punish sure wrong ones more, and tax every token the model
    was sure of.

    c_i = sum_t [logsumexp(z_it) - mean(z_it)] is the confidence of a rollout, c^_i its z-score in
    the group; A_i * exp(-beta_pos * c^_i) where r_i is above its group's mean, A_i * exp(beta_neg *
    c^_i) elsewhere; less token_coef * l_it, the sampled token's logit scaled to [0, 1] over the
    global batch: in homogeneous groups too. A rollout with a positive advantage stays at 0 or
    above.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable, gets 0.
        advantages_N: (N,) GRPO's advantages.
        token_logits_BT: (B, T) logit of the sampled token; only its place between the smallest and
            the largest counts.
        self_certainty_BT: (B, T) log-sum-exp less mean of the logits at the sampling temperature,
            in nats.
        mask_BT: (B, T), non-zero where a token counts.
        num_generations: G, at least 2.
        beta_pos, beta_neg, token_coef: At least 0; all 0 is GRPO.
        world: The processes that share the batch; every one must call.

    Returns:
        (B, T) token advantages, 0 at padding.

    Source: arXiv 2510.10649; upstream's code (xvolcano02/UCAS @ b122ff2). The fork in MINER's
        repository ranks the confidence backwards and pairs logits with the wrong rollouts; we
        follow upstream.
    """
    world = world or World()
    is_token_BT = mask_BT.bool()
    local = world.local_slice(mask_BT.shape[0])
    confidence_B = sum_tokens(self_certainty_BT, is_token_BT)
    confidence_N = world.gather(torch.where(is_token_BT.any(dim=1), confidence_B, torch.nan))
    # a z-score in the group, which is what GRPO makes of rewards; 0 for a rollout without tokens
    z_N = group_relative_advantages(confidence_N, num_generations, std_eps=1e-6).to(
        advantages_N.dtype
    )
    is_above_N = rewards_N > group_mean(rewards_N, num_generations)
    scaled_B = (advantages_N * torch.where(is_above_N, -beta_pos * z_N, beta_neg * z_N).exp())[
        local
    ]

    lowest = token_logits_BT.masked_fill(~is_token_BT, torch.inf).amin()
    highest = token_logits_BT.masked_fill(~is_token_BT, -torch.inf).amax()
    extremes_W2 = world.gather(torch.stack([lowest, highest]).unsqueeze(0))  # of every process
    lowest, highest = extremes_W2[:, 0].amin(), extremes_W2[:, 1].amax()
    spread = (highest - lowest).clamp(min=1e-8)  # one value everywhere: no token stands out
    level_BT = ((token_logits_BT - lowest) / spread).masked_fill(~is_token_BT, 0.0)
    taxed_BT = scaled_B.unsqueeze(1) - token_coef * level_BT
    taxed_BT = torch.where((scaled_B > 0).unsqueeze(1), taxed_BT.clamp(min=0.0), taxed_BT)
    return taxed_BT.masked_fill(~is_token_BT | rewards_N[local].isnan().unsqueeze(1), 0.0)


def _estimate(rollouts: Rollouts, **knobs: Any) -> Estimate:
    scores = rollouts.score(
        ("token_logits", "self_certainty"), torch.ones_like(rollouts.kinds.is_he_N)
    )
    advantages_BT = ucas_advantages(
        rollouts.rewards_N,
        rollouts.advantages_N,
        scores["token_logits"],
        scores["self_certainty"],
        rollouts.mask_BT,
        num_generations=rollouts.num_generations,
        world=rollouts.world,
        **knobs,
    )
    return Estimate(advantages_BT, rollouts.token_means(advantages_BT))


UCAS = AdvantageEstimator(
    name="ucas",
    label="UCAS",
    arxiv="2510.10649",
    function=ucas_advantages,
    estimate=_estimate,
    scores=frozenset({"token_logits", "self_certainty"}),
    knobs=("beta_pos", "beta_neg", "token_coef"),
)
