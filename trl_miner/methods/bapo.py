"""BAPO (arXiv 2510.18927): clipping bounds that adapt to the share of positive tokens.

# B rows of this process's micro-batch, T padded completion tokens
"""

import torch

from .method import PolicyLoss
from .micro_batch import MicroBatch, Surrogate
from .processes import accumulation_dtype

LOW_STEP, HIGH_STEP = 0.05, 0.1  # of the bounds that the search tries, as in the paper


def bapo(
    batch: MicroBatch,
    *,
    target: float = 1.0,
    low_start: float = 0.5,
    low_max: float = 0.95,
    high_start: float = 1.5,
    high_max: float = 3.0,
) -> Surrogate:
    """Raise the clipping bounds until positive tokens contribute their share.

    Positive tokens contribute the sum of min(rho, high) * A, negative ones that of max(rho, low) *
    |A|, over the micro-batches of all processes. While positive / negative is below `target`, the
    lower bound rises step by step to its maximum, then the upper one. That order is the published
    code's; its paper's algorithm has the upper one first.

    Args:
        batch: The micro-batch.
        target: Positive over negative contribution, at least 0. MINER's paper asks for a positive
            share of 50 %, which is a ratio of 1.
        low_start, low_max: First and last lower bound of the ratio pi / pi_old. The published
            script begins at 0.8, the paper at 0.5.
        high_start, high_max: First and last upper bound; 1.2 in the published script, 1.5 in the
            paper.

    Returns:
        `Surrogate` with the bounds found and the metrics bapo/clip_low, bapo/clip_high and
        bapo/positive_share.

    Source: arXiv 2510.18927; WooooDyy/BAPO @ 7287044; MINER's paper, appendix on the exploration
        baselines.
    """
    is_token_BT, wide = batch.mask_BT.bool(), accumulation_dtype(batch.mask_BT.device)
    log_ratios = (batch.logps_BT.detach() - batch.old_logps_BT)[is_token_BT]
    ratios, advantages = log_ratios.clamp(-20.0, 20.0).exp(), batch.advantages_BT[is_token_BT]

    def contributions(low: float, high: float) -> list[float]:
        of_negative = ratios.clamp(min=low) * advantages.clamp(max=0).abs()
        of_positive = ratios.clamp(max=high) * advantages.clamp(min=0)
        sums = torch.stack([of_positive.sum(dtype=wide), of_negative.sum(dtype=wide)])
        found: list[float] = batch.world.sum(sums).tolist()
        return found

    low, high = low_start, high_start
    positive, negative = contributions(low, high)
    while positive < target * negative and (low < low_max or high < high_max):
        if low < low_max:
            low = min(low + LOW_STEP, low_max)
        else:
            high = min(high + HIGH_STEP, high_max)
        positive, negative = contributions(low, high)
    metrics = {"bapo/clip_low": low, "bapo/clip_high": high}
    if positive + negative > 0:
        metrics["bapo/positive_share"] = positive / (positive + negative)
    return Surrogate(batch.advantages_BT, 1 - low, high - 1, metrics)


BAPO = PolicyLoss(
    name="bapo",
    label="BAPO",
    arxiv="2510.18927",
    function=bapo,
    off_policy_only=True,
)
