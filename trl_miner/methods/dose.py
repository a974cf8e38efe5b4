"""`dose_share`: how strongly the methods of all-right and all-wrong prompts act, beside that of
mixed prompts.

One scale multiplies the advantages of all credited rows, those of the prompts that such a method
has:

    scale = odds * m_other / m_credited

m is the mass of a part of the batch: the L2 norm of its advantages over its tokens. So the scale
follows every batch, and only the odds are steered, by measured gradients.

# N = P*G rollouts of the global batch; B of this process or of one of its micro-batches; T padded
completion tokens
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .rollouts import Estimate, Rollouts, sum_tokens

# of a measurement in the running mean, once there are five; single steps scatter
NEWEST_WEIGHT = 0.2
# advantages that need more are rounding errors, as where all rollouts of a group are the same text
MOST_SCALE = 1e5


@dataclass(frozen=True)
class DoseState:
    """What the steering knows; every checkpoint keeps it."""

    log_odds: float  # log of the odds of the masses that the next batch gets
    scale: float = 0.0  # the factor of the credited rows in the newest batch that had some
    # the mass of the other rows in the newest batch that had some; 0: none so far
    other_mass: float = 0.0
    measurements: int = 0


def start_dose(target: float) -> DoseState:
    """Return the state of a run that begins: before the first measurement, a share is taken for one
    of the masses."""
    return DoseState(_logit(target))


def squared_masses(advantages_BT: Tensor, mask_BT: Tensor, is_credited_B: Tensor) -> Tensor:
    """Return (2,), the sums of squared advantages over the tokens of credited rows and of the
    others.

    Args:
        advantages_BT: (B, T).
        is_credited_B: (B,) bool.
    """
    sums_B = sum_tokens(advantages_BT.square(), mask_BT.bool())
    return torch.stack([sums_B[is_credited_B].sum(), sums_B[~is_credited_B].sum()])


def give_dose(
    estimate: Estimate, rollouts: Rollouts, is_credited_N: Tensor, state: DoseState
) -> tuple[Estimate, DoseState]:
    """Return the estimate with the advantages of credited rows scaled, and the state. Every process
    must call it.

    Without credit the scale stays the same. Where no other row has an advantage, the newest batch
    in which one had stands in: credited rows get as much mass as they would have got there, and
    nothing before the first such batch.

    Args:
        estimate: The advantages of all methods.
        rollouts: The batch.
        is_credited_N: (N,) bool, the rows that the dose is for.
        state: The state so far.
    """
    is_credited_B = rollouts.local(is_credited_N)
    squares_2 = rollouts.world.sum(
        squared_masses(estimate.advantages_BT, rollouts.mask_BT, is_credited_B)
    )
    credited, other = squares_2.sqrt().tolist()
    if 0 < other < math.inf:
        state = replace(state, other_mass=other)
    if 0 < credited < math.inf:
        scale = math.exp(state.log_odds) * state.other_mass / credited
        state = replace(state, scale=min(MOST_SCALE, scale))
    factors_N = torch.where(is_credited_N, state.scale, 1.0).to(estimate.advantages_BT.dtype)
    scaled_BT = estimate.advantages_BT * rollouts.local(factors_N).unsqueeze(1)
    return (
        replace(estimate, advantages_BT=scaled_BT, advantages_N=estimate.advantages_N * factors_N),
        state,
    )


def steer_share(
    state: DoseState,
    target: float,
    gradient_squares: tuple[float, float],
    mass_squares: tuple[float, float],
) -> DoseState:
    """Return the state after a measurement of an optimizer step's gradient.

    The step's odds are k times as large for the gradients as for the masses. The next batches get
    the wanted odds over the running mean of k: not of its logarithm, so that it is the mean share
    that comes out as wanted.

    Args:
        state: The state so far.
        target: Wanted share of the gradient's norm, |g_credited| / (|g_credited| + |g_other|),
            between 0 and 1.
        gradient_squares: Squared L2 norm of the gradient from credited rows, and from the others.
        mass_squares: `squared_masses` of the same rows, over all processes.
    """
    gradient, mass = _log_ratio(*gradient_squares), _log_ratio(*mass_squares)
    if gradient is None or mass is None:
        return state
    weight = max(NEWEST_WEIGHT, 1 / (state.measurements + 1))
    k = (1 - weight) * math.exp(_logit(target) - state.log_odds) + weight * math.exp(
        gradient - mass
    )
    return replace(
        state, log_odds=_logit(target) - math.log(k), measurements=state.measurements + 1
    )


def _log_ratio(credited_square: float, other_square: float) -> float | None:
    """Return the log of the ratio of two norms, given their squares; None where one is 0 or not
    finite."""
    if not (0 < credited_square < math.inf and 0 < other_square < math.inf):
        return None
    return 0.5 * (math.log(credited_square) - math.log(other_square))


def _logit(share: float) -> float:
    return math.log(share) - math.log1p(-share)
