"""BAPO (arXiv 2510.18927): clipping bounds that adapt to the share of positive tokens.

# B rows of this process's micro-batch, T padded completion tokens
"""

import torch

from .method import PolicyLoss
from .micro_batch import MicroBatch, Surrogate
from .processes import accumulation_dtype

# Lower and upper bounds of the ratio pi / pi_old, in the order in which they are tried
BOUNDS = [(0.5 + 0.05 * step, 1.5) for step in range(10)]
BOUNDS += [(0.95, 1.6 + 0.1 * step) for step in range(15)]


def bapo(batch: MicroBatch, *, target: float = 1.0) -> Surrogate:
    """Raise the clipping bounds until positive tokens contribute their share.

    Positive tokens contribute the sum of min(rho, high) * A, negative ones that of max(rho, low) *
    |A|, over the micro-batches of all processes. While positive / negative is below `target`, the
    lower bound rises from 0.5 to 0.95 in steps of 0.05, then the upper one from 1.5 to 3 in steps
    of 0.1.

    Args:
        batch: The micro-batch.
        target: Positive over negative contribution, at least 0. MINER's paper asks for a positive
            share of 50 %, which is a ratio of 1.

    Returns:
        `Surrogate` with the bounds found and the metrics bapo/clip_low, bapo/clip_high and
        bapo/positive_share.

    Source: arXiv 2510.18927, with the bounds of MINER's paper, appendix on the exploration
        baselines. The published code (WooooDyy/BAPO @ 7287044) raises the lower bound first, as
        here; its paper's algorithm has the upper one first. Its script begins at 0.8 and 1.2.
    """
    is_token_BT, wide = batch.mask_BT.bool(), accumulation_dtype(batch.mask_BT.device)
    log_ratios_BT = batch.logps_BT.detach() - batch.old_logps_BT
    ratios = log_ratios_BT[is_token_BT].clamp(-20.0, 20.0).exp().to(wide)
    advantages = batch.advantages_BT[is_token_BT]
    for low, high in BOUNDS:
        of_positive = (ratios.clamp(max=high) * advantages.clamp(min=0)).sum()
        of_negative = -(ratios.clamp(min=low) * advantages.clamp(max=0)).sum()
        sums = batch.world.sum(torch.stack([of_positive, of_negative]))
        positive, negative = sums.tolist()
        if positive >= target * negative:
            break
    share = positive / max(positive + negative, 1e-8)
    metrics = {"bapo/clip_low": low, "bapo/clip_high": high, "bapo/positive_share": share}
    return Surrogate(batch.advantages_BT, 1 - low, high - 1, metrics)


BAPO = PolicyLoss(
    name="bapo",
    label="BAPO",
    arxiv="2510.18927",
    function=bapo,
    off_policy_only=True,
)
