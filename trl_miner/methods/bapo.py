"""BAPO (arXiv 2510.18927): clipping bounds that adapt to the share of positive tokens.

Statistics are over the micro-batches of all processes.

# B rows of this process's micro-batch, T padded completion tokens
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from ..distributed import World, accumulation_dtype
from .method import NonNegative, PolicyLoss
from .rollouts import Surrogate

_LOW_START, _LOW_STEP = 0.5, 0.05  # of the bounds that the search tries, as in the paper
_HIGH_START, _HIGH_STEP = 1.5, 0.1


def bapo(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    target: NonNegative = 1.0,
    low_max: Annotated[float, Field(ge=_LOW_START)] = 0.95,
    high_max: Annotated[float, Field(ge=_HIGH_START)] = 3.0,
    world: World | None = None,
) -> Surrogate:
    """Raise the clipping bounds until positive tokens contribute their share.

    Positive tokens contribute the sum of min(rho, high) * A, negative ones that of max(rho, low) *
    |A|. While positive / negative is below `target`, the lower bound rises step by step to its
    maximum, then the upper one. That order is the published code's; its paper's algorithm has the
    upper one first.

    Args:
        logps_BT, old_logps_BT, advantages_BT, mask_BT: As in `clip_cov`.
        target: Positive over negative contribution, at least 0. The paper of MINER asks for a
            positive share of 50 %, which is a ratio of 1.
        low_max: Last lower bound of the ratio pi / pi_old, at least 0.5.
        high_max: Last upper bound, at least 1.5.
        world: The processes that share the batch; every one must call.

    Returns:
        `Surrogate` with the bounds found and the metrics bapo/clip_low, bapo/clip_high and
        bapo/positive_share.

    Source: arXiv 2510.18927; WooooDyy/BAPO @ 7287044; the paper of MINER, appendix on the
        exploration baselines.
    """
    world, is_token_BT = world or World(), mask_BT.bool()
    ratios = (logps_BT.detach() - old_logps_BT)[is_token_BT].clamp(-20.0, 20.0).exp()
    advantages = advantages_BT.detach().expand_as(mask_BT)[is_token_BT]
    is_positive, wide = advantages >= 0, accumulation_dtype(mask_BT.device)

    def contribution(clipped: Tensor, chosen: Tensor) -> float:
        return float(world.sum((clipped[chosen] * advantages[chosen].abs()).sum(dtype=wide)))

    def is_short() -> bool:
        return negative > 0 and positive / (negative + 1e-8) < target

    low, high = _LOW_START, _HIGH_START
    negative = contribution(ratios.clamp(min=low), ~is_positive)
    positive = contribution(ratios.clamp(max=high), is_positive)
    while is_short() and low < low_max:
        low = min(low + _LOW_STEP, low_max)
        negative = contribution(ratios.clamp(min=low), ~is_positive)
    while is_short() and high < high_max:
        high = min(high + _HIGH_STEP, high_max)
        positive = contribution(ratios.clamp(max=high), is_positive)
    metrics = {"bapo/clip_low": low, "bapo/clip_high": high}
    if positive + negative > 0:
        metrics["bapo/positive_share"] = positive / (positive + negative)
    return Surrogate(advantages_BT, low, high, metrics)


BAPO = PolicyLoss(
    name="bapo",
    label="BAPO",
    arxiv="2510.18927",
    function=bapo,
    off_policy_only=True,
    spans_optimizer_step=True,
    knobs=("target", "low_max", "high_max"),
)
