"""Methods that act inside the loss: Clip-Cov, KL-Cov, BAPO.

None of them is a loss of its own. Each says, between TRL's forward and TRL's loss, what that loss should see instead:
other advantages at some tokens, or other clipping bounds. All statistics are over the micro-batches of all processes.

# B rows of this process's micro-batch, T padded completion tokens; K chosen tokens; L lower and U upper bounds tried
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..distributed import World, accumulation_dtype


@dataclass(frozen=True, eq=False)
class Surrogate:
    """What the clipped loss is to see.

    Attributes:
        advantages_BT: (B, T).
        clip_low, clip_high: Bounds of the ratio pi / pi_old; None: those of the configuration.
        metrics: Numbers to log, by full name.
    """

    advantages_BT: Tensor
    clip_low: float | None = None
    clip_high: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)


def covariances(logps_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, world: World | None = None) -> Tensor:
    """How each token's log-prob and advantage vary together: (A - mean A) * (lp - mean lp), means over all tokens.

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
    ratio: float = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
    epsilon_low: float = 1.0,
    epsilon_high: float = 1.0,
    generator: torch.Generator | None = None,
    world: World | None = None,
) -> Surrogate:
    """Clip-Cov: leave a few tokens of high covariance, picked at random, out of the policy gradient.

    The candidates have a covariance between `low` and `high` and are not clipped already; max(1, int(ratio * tokens))
    of them get an advantage of 0.

    Args:
        logps_BT: (B, T) log-probs under the current policy, in nats.
        old_logps_BT: (B, T) under the old policy.
        advantages_BT: (B, T).
        mask_BT: (B, T), non-zero where a token counts.
        ratio: Share of the tokens to leave out, in [0, 1]; 0 leaves out none (the published code: one).
        low, high: Bounds of the covariance, in advantage units times nats.
        epsilon_low, epsilon_high: The clipping range 1 - epsilon_low, 1 + epsilon_high; the method widens it to 0, 2.
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
    is_candidate_BT = (covariance_BT > low) & (covariance_BT < high) & ~is_clipped_BT & mask_BT.bool()
    candidates_K2 = is_candidate_BT.nonzero()
    counts = world.gather(torch.tensor([[len(candidates_K2), int(mask_BT.bool().sum())]], device=mask_BT.device))
    num_candidates, num_tokens = counts.sum(dim=0).tolist()
    num_dropped = min(max(int(ratio * num_tokens), 1), num_candidates)
    # One draw over the candidates of all processes, in rank order; each process drops those that are its own.
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
    ratio: float = 2e-3,
    coef: float = 1.0,
    world: World | None = None,
) -> Surrogate:
    """KL-Cov: a penalty coef * |lp - old lp| on the tokens of highest covariance; no clipping.

    The loss of a token without clipping is -rho * A. With A - coef * |lp - old lp| / rho in the place of A, and that
    with its gradient, it is -rho * A + coef * |lp - old lp|: the method's loss, in whatever way the tokens are then
    averaged. Strictly on-policy the penalty and its gradient are 0.

    Args:
        logps_BT: (B, T) log-probs under the current policy, in nats; may carry a gradient.
        old_logps_BT: (B, T) under the old policy.
        advantages_BT: (B, T).
        mask_BT: (B, T), non-zero where a token counts.
        ratio: Share of the tokens to penalize, in [0, 1]: max(1, int(ratio * tokens)) of them; 0 penalizes none.
        coef: Weight of the penalty, at least 0.
        world: The processes that share the batch; every one must call.

    Returns:
        `Surrogate` with advantages that carry a gradient, clipping bounds 0 and infinity, and the metrics
        kl_cov/penalised (share of all tokens) and kl_cov/penalty (mean |lp - old lp| of those, in nats).

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
    log_ratio_BT = torch.where(is_chosen_BT, logps_BT - old_logps_BT, 0.0)  # 0 elsewhere, and so is its gradient
    penalty_BT = log_ratio_BT.abs()
    advantages_BT = advantages_BT - coef * penalty_BT * torch.exp(-log_ratio_BT)
    mean_penalty = float(world.sum(penalty_BT.detach().sum(dtype=accumulation_dtype(mask_BT.device)))) / num_chosen
    metrics = {"kl_cov/penalised": num_chosen / num_tokens, "kl_cov/penalty": mean_penalty}
    return Surrogate(advantages_BT, 0.0, torch.inf, metrics)


def _largest(values_BT: Tensor, count: int, world: World) -> Tensor:
    """(B, T) bool: the `count` largest values of all processes. Each process sends its own largest, no more."""
    flat = values_BT.flatten()
    found, places = flat.topk(min(count, flat.numel()))
    padded = flat.new_full((count,), -torch.inf)
    padded[: len(found)] = found
    chosen = world.gather(padded).topk(count).indices - world.rank * count
    mine = chosen[(chosen >= 0) & (chosen < len(found))]
    is_largest = torch.zeros_like(flat, dtype=torch.bool)
    is_largest[places[mine]] = True
    return is_largest.view_as(values_BT)


def bapo(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    target: float = 1.0,
    low_start: float = 0.5,
    low_max: float = 0.95,
    low_step: float = 0.05,
    high_start: float = 1.5,
    high_max: float = 3.0,
    high_step: float = 0.1,
    world: World | None = None,
) -> Surrogate:
    """BAPO: raise the clipping bounds until positive tokens contribute their share.

    Positive tokens contribute the sum of min(rho, high) * A, negative ones that of max(rho, low) * |A|.
    While positive / negative is below `target`, the lower bound rises step by step to its maximum, then the upper one.
    That order is the published code's; its paper's algorithm has the upper one first.

    Args:
        logps_BT: (B, T) log-probs under the current policy, in nats.
        old_logps_BT: (B, T) under the old policy.
        advantages_BT: (B, T).
        mask_BT: (B, T), non-zero where a token counts.
        target: Positive over negative contribution, at least 0. The paper of MINER asks for a positive share of 50 %,
            which is a ratio of 1.
        low_start, low_max, low_step: Of the lower bound of the ratio pi / pi_old.
        high_start, high_max, high_step: Of the upper bound.
        world: The processes that share the batch; every one must call.

    Returns:
        `Surrogate` with the bounds found and the metrics bapo/clip_low, bapo/clip_high and bapo/positive_share.

    Source: arXiv 2510.18927; WooooDyy/BAPO @ 7287044; the paper of MINER, appendix on the exploration baselines.
    """
    lows, highs = _steps(low_start, low_max, low_step), _steps(high_start, high_max, high_step)
    # All bounds that the search could try, at once: one look at the tokens and one collective for the whole of it.
    is_token_BT = mask_BT.bool()
    ratios = (logps_BT.detach() - old_logps_BT)[is_token_BT].clamp(-20.0, 20.0).exp()
    advantages = advantages_BT.detach().expand_as(mask_BT)[is_token_BT]
    is_positive = advantages >= 0
    wide = accumulation_dtype(mask_BT.device)

    def contributions(bounds: list[float], clip: Callable[..., Tensor], chosen: Tensor) -> list[Tensor]:
        weights, of = advantages[chosen].abs(), ratios[chosen]
        return [(clip(of, bound) * weights).sum(dtype=wide) for bound in bounds]

    sums = [
        *contributions(lows, lambda x, bound: x.clamp(min=bound), ~is_positive),
        *contributions(highs, lambda x, bound: x.clamp(max=bound), is_positive),
    ]
    totals = (world or World()).sum(torch.stack(sums)).tolist()
    negative, positive = totals[: len(lows)], totals[len(lows) :]

    def is_short(low: int, high: int) -> bool:
        return negative[low] > 0 and positive[high] / (negative[low] + 1e-8) < target

    low = high = 0
    while is_short(low, high) and low + 1 < len(lows):
        low += 1
    while is_short(low, high) and high + 1 < len(highs):
        high += 1
    contributed = positive[high] + negative[low]
    metrics = {"bapo/clip_low": lows[low], "bapo/clip_high": highs[high]}
    if contributed > 0:
        metrics["bapo/positive_share"] = positive[high] / contributed
    return Surrogate(advantages_BT, lows[low], highs[high], metrics)


def _steps(start: float, stop: float, step: float) -> list[float]:
    steps = [start]
    while step > 0 and steps[-1] < stop:
        steps.append(min(steps[-1] + step, stop))
    return steps


POLICY_LOSSES: dict[str, Callable[..., Surrogate] | None] = {
    "clip": None,  # TRL's own
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "bapo": bapo,
}
# What only differs from plain policy gradient once the policy has moved away from the one that sampled.
OFF_POLICY_ONLY = {"kl_cov", "bapo"}
# The losses of TRL that clip a ratio at every token; in the others there is nothing for these methods to change.
CLIPPED_LOSSES = {"grpo", "bnpo", "dr_grpo", "dapo"}
