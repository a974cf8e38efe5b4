"""Clip-Cov and KL-Cov (arXiv 2505.22617): tokens of high covariance are left out of the policy
gradient, or penalized.

Statistics are over the micro-batches of all processes.

# B rows of this process's micro-batch, T padded completion tokens; K candidates
"""

import torch
from torch import Tensor

from .distributed import World, accumulation_dtype
from .method import NonNegative, PolicyLoss, Share
from .rollouts import Surrogate


def covariances(
    logps_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, world: World | None = None
) -> Tensor:
    """Return how log-prob and advantage vary together at each token: (A - mean A) * (lp - mean lp).

    Both means are over all tokens.

    Args:
        logps_BT: (B, T) log-probs under the current policy, in nats.
        advantages_BT: (B, T).
        mask_BT: (B, T), non-zero where a token counts.
        world: The processes that share the batch; every one must call.

    Returns:
        (B, T), constants for the gradient; -inf at padding.

    Source: arXiv 2505.22617, its token-wise covariance.
    """
    is_token_BT = mask_BT.bool()
    logps_BT = logps_BT.detach().masked_fill(~is_token_BT, 0.0)
    advantages_BT = advantages_BT.detach().masked_fill(~is_token_BT, 0.0)
    wide = accumulation_dtype(logps_BT.device)
    sums = torch.stack([x.sum(dtype=wide) for x in (is_token_BT, advantages_BT, logps_BT)])
    count, advantage_sum, logp_sum = (world or World()).sum(sums).unbind()
    mean_advantage, mean_logp = (total / count.clamp(min=1) for total in (advantage_sum, logp_sum))
    covariance_BT = (advantages_BT - mean_advantage) * (logps_BT - mean_logp)
    return covariance_BT.masked_fill(~is_token_BT, -torch.inf)


def clip_cov(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    ratio: Share = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
    epsilon_low: float = 1.0,
    epsilon_high: float = 1.0,
    generator: torch.Generator | None = None,
    world: World | None = None,
) -> Surrogate:
    """Leave a few tokens of high covariance, picked at random, out of the policy gradient.

    The candidates have a covariance between `low` and `high` and are not clipped already; max(1,
    int(ratio * tokens)) of them get an advantage of 0.

    Args:
        logps_BT: (B, T) log-probs under the current policy, in nats.
        old_logps_BT: (B, T) under the old policy.
        advantages_BT: (B, T).
        mask_BT: (B, T), non-zero where a token counts.
        ratio: Share of the tokens to leave out, in [0, 1]; 0 leaves out none (the published code:
            one).
        low, high: Bounds of the covariance, in advantage units times nats.
        epsilon_low, epsilon_high: The clipping range 1 - epsilon_low, 1 + epsilon_high; the method
            widens it to 0, 2.
        generator: On the CPU, in the same state on every process.
        world: The processes that share the batch; every one must call.

    Returns:
        `Surrogate` with the metric clip_cov/dropped, the share of all tokens.

    Source: arXiv 2505.22617; the paper of MINER, appendix on the exploration baselines.
    """
    world = world or World()
    if ratio == 0:
        return Surrogate(advantages_BT)
    covariance_BT = covariances(logps_BT, advantages_BT, mask_BT, world)
    ratios_BT = (logps_BT.detach() - old_logps_BT).exp()
    is_clipped_BT = ((ratios_BT < 1 - epsilon_low) & (advantages_BT < 0)) | (
        (ratios_BT > 1 + epsilon_high) & (advantages_BT > 0)
    )
    is_candidate_BT = (
        (covariance_BT > low) & (covariance_BT < high) & ~is_clipped_BT & mask_BT.bool()
    )
    candidates_K2 = is_candidate_BT.nonzero()
    counts = world.gather(
        torch.tensor([[len(candidates_K2), int(mask_BT.bool().sum())]], device=mask_BT.device)
    )
    num_candidates, num_tokens = counts.sum(dim=0).tolist()
    num_dropped = min(max(int(ratio * num_tokens), 1), num_candidates)
    # One draw over the candidates of all processes, in rank order; each process drops those that
    # are its own.
    chosen = torch.randperm(num_candidates, generator=generator)[:num_dropped].to(mask_BT.device)
    chosen = chosen - counts[: world.rank, 0].sum()
    chosen = chosen[(chosen >= 0) & (chosen < len(candidates_K2))]
    advantages_BT = advantages_BT.clone()
    advantages_BT[tuple(candidates_K2[chosen].unbind(dim=1))] = 0.0
    return Surrogate(advantages_BT, metrics={"clip_cov/dropped": num_dropped / max(num_tokens, 1)})


def kl_cov(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    ratio: Share = 2e-3,
    coef: NonNegative = 1.0,
    world: World | None = None,
) -> Surrogate:
    """Penalize the tokens of highest covariance by coef * |lp - old lp|, and clip none.

    The loss of a token without clipping is -rho * A. With A - coef * |lp - old lp| / rho in the
    place of A, and that with its gradient, it is -rho * A + coef * |lp - old lp|: the method's
    loss, in whatever way the tokens are then averaged. Strictly on-policy the penalty and its
    gradient are 0.

    Args:
        logps_BT, old_logps_BT, advantages_BT, mask_BT: As in `clip_cov`; the log-probs may carry a
            gradient.
        ratio: Share of the tokens to penalize, in [0, 1]: max(1, int(ratio * tokens)) of them; 0
            penalizes none.
        coef: Weight of the penalty, at least 0.
        world: The processes that share the batch; every one must call.

    Returns:
        `Surrogate` with advantages that carry a gradient, clipping bounds 0 and infinity, and the
        metrics kl_cov/penalised (share of all tokens) and kl_cov/penalty (mean |lp - old lp| of
        those, in nats).

    Source: arXiv 2505.22617; the paper of MINER, appendix on the exploration baselines.
    """
    world = world or World()
    is_token_BT = mask_BT.bool()
    num_tokens = int(world.sum(is_token_BT.sum()))
    num_chosen = min(max(1, int(ratio * num_tokens)) if ratio > 0 else 0, num_tokens)
    if num_chosen == 0:
        return Surrogate(advantages_BT, 0.0, torch.inf)
    covariance_BT = covariances(logps_BT, advantages_BT, mask_BT, world)
    is_chosen_BT = _largest(covariance_BT, num_chosen, world)
    # 0 elsewhere, and so is its gradient
    log_ratio_BT = torch.where(is_chosen_BT, logps_BT - old_logps_BT, 0.0)
    penalty_BT = log_ratio_BT.abs()
    advantages_BT = advantages_BT - coef * penalty_BT * torch.exp(-log_ratio_BT)
    mean_penalty = (
        float(world.sum(penalty_BT.detach().sum(dtype=accumulation_dtype(mask_BT.device))))
        / num_chosen
    )
    metrics = {"kl_cov/penalised": num_chosen / num_tokens, "kl_cov/penalty": mean_penalty}
    return Surrogate(advantages_BT, 0.0, torch.inf, metrics)


def _largest(values_BT: Tensor, count: int, world: World) -> Tensor:
    """(B, T) bool: the `count` largest values of all processes. Each process sends its own largest,
    no more."""
    flat = values_BT.flatten()
    largest, places = flat.topk(min(count, flat.numel()))
    padded = flat.new_full((count,), -torch.inf)
    padded[: len(largest)] = largest
    chosen = world.gather(padded).topk(count).indices - world.rank * count
    mine = chosen[(chosen >= 0) & (chosen < len(largest))]
    is_largest = torch.zeros_like(flat, dtype=torch.bool)
    is_largest[places[mine]] = True
    return is_largest.view_as(values_BT)


CLIP_COV = PolicyLoss(
    name="clip_cov",
    label="Clip-Cov",
    arxiv="2505.22617",
    function=clip_cov,
    context=("world", "epsilon_low", "epsilon_high", "generator"),
    fixed_micro_batches="policy_loss=clip_cov picks among the tokens of a micro-batch",
    knobs=("ratio", "low", "high"),
)
KL_COV = PolicyLoss(
    name="kl_cov",
    label="KL-Cov",
    arxiv="2505.22617",
    function=kl_cov,
    off_policy_only=True,
    # |lp - old lp|: 0 where both are computed alike, else what rounding makes of it, with a
    # gradient of +-1.
    fixed_micro_batches=(
        "the penalty of policy_loss=kl_cov has a kink where log-probs are the old ones"
    ),
    knobs=("ratio", "coef"),
)
