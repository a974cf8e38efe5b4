"""Clip-Cov and KL-Cov (arXiv 2505.22617): tokens of high covariance are left out of the policy
gradient, or penalized.

# B rows of this process's micro-batch, T padded completion tokens; K candidates
"""

import torch
from torch import Tensor

from .method import PolicyLoss
from .micro_batch import MicroBatch, Surrogate
from .processes import World, accumulation_dtype


def covariances(batch: MicroBatch) -> Tensor:
    """Return how log-prob and advantage vary together at each token: (A - mean A) * (lp - mean lp),
    with means over the tokens of all processes.

    Returns:
        (B, T), constants for the gradient; -inf at padding.

    Source: arXiv 2505.22617, its token-wise covariance.
    """
    is_token_BT, wide = batch.mask_BT.bool(), accumulation_dtype(batch.mask_BT.device)
    given = batch.advantages_BT, batch.logps_BT
    advantages, logps = (values_BT.detach()[is_token_BT] for values_BT in given)
    sums = [values.sum(dtype=wide) for values in (is_token_BT, advantages, logps)]
    count, *totals = batch.world.sum(torch.stack(sums))
    mean_advantage, mean_logp = (total / count for total in totals)
    covariance = (advantages - mean_advantage) * (logps - mean_logp)
    nothing_BT = logps.new_full(is_token_BT.shape, -torch.inf)
    return nothing_BT.masked_scatter(is_token_BT, covariance)


def clip_cov(
    batch: MicroBatch, *, ratio: float = 2e-4, low: float = 1.0, high: float = 5.0
) -> Surrogate:
    """Leave a few tokens of high covariance, picked at random, out of the policy gradient.

    The candidates have a covariance between `low` and `high` and are not clipped already; max(1,
    int(ratio * tokens)) of them get an advantage of 0. TRL's own bounds stay: the method asks for
    `epsilon: 1`, ratios from 0 to 2.

    Args:
        batch: The micro-batch.
        ratio: Share of the tokens to leave out, in [0, 1]; 0 leaves out none (the published code:
            one).
        low, high: Bounds of the covariance, in advantage units times nats.

    Returns:
        `Surrogate` with the metric clip_cov/dropped, the share of all tokens.

    Source: arXiv 2505.22617; MINER's paper, appendix on the exploration baselines.
    """
    advantages_BT, covariance_BT = batch.advantages_BT, covariances(batch)
    ratios_BT = (batch.logps_BT.detach() - batch.old_logps_BT).exp()
    bounds_BT = torch.where(advantages_BT > 0, batch.epsilon_high, batch.epsilon_low)
    is_clipped_BT = (ratios_BT - 1) * advantages_BT.sign() > bounds_BT
    is_candidate_BT = (covariance_BT > low) & (covariance_BT < high) & ~is_clipped_BT
    counts = torch.stack([is_candidate_BT.sum(), batch.mask_BT.count_nonzero()])
    counts_W2 = batch.world.gather(counts[None])
    num_candidates, num_tokens = counts_W2.sum(dim=0).tolist()
    num_dropped = min(_share(ratio, num_tokens), num_candidates)
    # one draw from the candidates of all processes, in rank order, of which each has its own
    is_drawn = torch.zeros(num_candidates, dtype=torch.bool)
    is_drawn[torch.randperm(num_candidates, generator=batch.generator)[:num_dropped]] = True
    own = is_drawn.split(counts_W2[:, 0].tolist())[batch.world.rank].to(is_candidate_BT)
    is_dropped_BT = is_candidate_BT.masked_scatter(is_candidate_BT, own)
    return Surrogate(
        advantages_BT.masked_fill(is_dropped_BT, 0.0),
        metrics={"clip_cov/dropped": num_dropped / max(num_tokens, 1)},
    )


def kl_cov(batch: MicroBatch, *, ratio: float = 2e-3, coef: float = 1.0) -> Surrogate:
    """Penalize the tokens of highest covariance by coef * |lp - old lp|, and clip none.

    The loss of a token without clipping is -rho * A. With A - coef * |lp - old lp| / rho in the
    place of A, and that with its gradient, it is -rho * A + coef * |lp - old lp|: the method's
    loss, in whatever way the tokens are then averaged. Strictly on-policy the penalty and its
    gradient are 0.

    Args:
        batch: The micro-batch.
        ratio: Share of the tokens to penalize, in [0, 1]: max(1, int(ratio * tokens)) of them; 0
            penalizes none.
        coef: Weight of the penalty, at least 0.

    Returns:
        `Surrogate` with advantages that carry a gradient, bounds that clip nothing, and the metrics
        kl_cov/penalised (share of all tokens) and kl_cov/penalty (mean |lp - old lp| of those, in
        nats).

    Source: arXiv 2505.22617; MINER's paper, appendix on the exploration baselines.
    """
    num_tokens = int(batch.world.sum(batch.mask_BT.count_nonzero()))
    num_chosen = min(_share(ratio, num_tokens), num_tokens)
    is_chosen_BT = _largest(covariances(batch), num_chosen, batch.world)
    # 0 elsewhere, and so is its gradient
    log_ratio_BT = torch.where(is_chosen_BT, batch.logps_BT - batch.old_logps_BT, 0.0)
    penalty_BT = log_ratio_BT.abs()
    total_penalty = float(batch.world.sum(penalty_BT.detach().sum()))
    return Surrogate(
        batch.advantages_BT - coef * penalty_BT * torch.exp(-log_ratio_BT),
        epsilon_low=1.0,
        epsilon_high=torch.inf,
        metrics={
            "kl_cov/penalised": num_chosen / max(num_tokens, 1),
            "kl_cov/penalty": total_penalty / max(num_chosen, 1),
        },
    )


def _share(ratio: float, num_tokens: int) -> int:
    return max(int(ratio * num_tokens), int(ratio > 0))


def _largest(values_BT: Tensor, count: int, world: World) -> Tensor:
    """(B, T) bool: the `count` largest values of all processes, of which each sends as many."""
    values, places = values_BT.flatten().topk(min(count, values_BT.numel()))
    padding = values.new_full((count - len(values),), -torch.inf)
    of_all = world.gather(torch.cat([values, padding]))
    is_chosen = torch.zeros_like(of_all, dtype=torch.bool)
    is_chosen[of_all.topk(count).indices] = True
    own = is_chosen.view(world.size, count)[world.rank, : len(values)]
    is_largest = torch.zeros_like(values_BT, dtype=torch.bool)
    is_largest.view(-1)[places] = own
    return is_largest


CLIP_COV = PolicyLoss(
    name="clip_cov",
    label="Clip-Cov",
    arxiv="2505.22617",
    function=clip_cov,
)
KL_COV = PolicyLoss(
    name="kl_cov",
    label="KL-Cov",
    arxiv="2505.22617",
    function=kl_cov,
    off_policy_only=True,
)
