"""`policy_loss`: other advantages and clipping bounds in TRL's loss, between its forward and its
arithmetic.

# B rows of a micro-batch, T padded completion tokens
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..methods.method import PolicyLoss
from ..methods.micro_batch import MicroBatch, Surrogate
from ..methods.processes import current_world
from .compact_step import Batch, loss_mask


@dataclass(frozen=True)
class Watched:
    """A model in TRL's loss, and who looks at what TRL's forward returns of it."""

    model: Any
    look: Callable[[Any], None]


def surrogate(
    method: tuple[PolicyLoss, Any],
    logps_BT: Tensor,
    batch: Batch,
    bounds: tuple[float, float],
    seed: tuple[int, int],
) -> Surrogate:
    """Return what a policy loss makes of a micro-batch. Every process must call.

    Args:
        method: Its record, and its parameters.
        logps_BT: Of the micro-batch.
        batch: The micro-batch.
        bounds: TRL's epsilon_low and epsilon_high.
        seed: Of the run, and the place in it: a resumed run draws the same, as does each process.
    """
    mask_BT, (record, knobs) = loss_mask(batch), method
    assert record.function is not None, "clip is TRL's own loss"
    return record.function(
        MicroBatch(
            logps_BT,
            batch.get("old_per_token_logps", logps_BT.detach()),
            batch["advantages"].view(len(mask_BT), -1).expand(mask_BT.shape),
            mask_BT,
            *bounds,
            generator=torch.Generator().manual_seed(seed[0] * 2**31 + seed[1]),
            world=current_world(),
        ),
        **knobs,
    )
