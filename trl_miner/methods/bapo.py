"""BAPO (arXiv 2510.18927): clipping bounds that adapt to the share of positive tokens.

Statistics are over the micro-batches of all processes.

# B rows of this process's micro-batch, T padded completion tokens
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from .distributed import World, accumulation_dtype
from .method import NonNegative, PolicyLoss
from .rollouts import Surrogate

_LOW_STEP, _HIGH_STEP = 0.05, 0.1  # of the bounds that the search tries, as in the paper


def bapo(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    target: NonNegative = 1.0,
    low_start: Annotated[float, Field(ge=0, le=1)] = 0.5,
    low_max: NonNegative = 0.95,
    high_start: Annotated[float, Field(ge=1)] = 1.5,
    high_max: NonNegative = 3.0,
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
        low_start, low_max: First and last lower bound of the ratio pi / pi_old. The published
            script begins at 0.8, the paper at 0.5.
        high_start, high_max: First and last upper bound; 1.2 in the published script, 1.5 in the
            paper.
        world: The processes that share the batch; every one must call.

    Returns:
        `Surrogate` with the bounds found and the metrics bapo/clip_low, bapo/clip_high and
        bapo/positive_share.

    Raises:
        ValueError: A bound would start behind its end.

    Source: arXiv 2510.18927; WooooDyy/BAPO @ 7287044; the paper of MINER, appendix on the
        exploration baselines.
    """
    for name, start, end in (("low", low_start, low_max), ("high", high_start, high_max)):
        if start > end:
            raise ValueError(
                f"{name}_start must be at most {name}_max: got {start:g} and {end:g}. Lower the"
                " first, or raise the second."
            )
    world, is_token_BT = world or World(), mask_BT.bool()
    ratios = (logps_BT.detach() - old_logps_BT)[is_token_BT].clamp(-20.0, 20.0).exp()
    advantages = advantages_BT.detach().expand_as(mask_BT)[is_token_BT]
    is_positive, wide = advantages >= 0, accumulation_dtype(mask_BT.device)

    def contribution(clipped: Tensor, chosen: Tensor) -> float:
        return float(world.sum((clipped[chosen] * advantages[chosen].abs()).sum(dtype=wide)))

    def is_short() -> bool:
        return negative > 0 and positive / (negative + 1e-8) < target

    low, high = low_start, high_start
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
    knobs=("target", "low_start", "low_max", "high_start", "high_max"),
)
