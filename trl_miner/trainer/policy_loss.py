"""`policy_loss`: other advantages and clipping bounds in TRL's loss, between its forward and its
arithmetic.

# B rows of a micro-batch, T padded completion tokens
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..methods.micro_batch import MicroBatch, Surrogate
from ..methods.processes import current_world
from .compact_step import Batch, loss_mask


@dataclass(frozen=True)
class Watched:
    """A model in TRL's loss, and who looks at what TRL's forward returns of it."""

    model: Any
    look: Callable[[Any], None]


def surrogate(
    method: Any, knobs: dict[str, Any], scores: Any, batch: Batch, *, bounds: Any, seed: int
) -> Surrogate:
    """Return what a policy loss makes of a micro-batch. Every process must call.

    Args:
        method: Its record.
        knobs: Its parameters.
        scores: Of the micro-batch, as TRL's forward returns them.
        batch: The micro-batch.
        bounds: TRL's epsilon_low and epsilon_high.
        seed: Of this place in the run: a resumed one draws the same, and so does each process.
    """
    logps_BT, mask_BT = scores[0], loss_mask(batch)
    old_logps_BT = batch.get("old_per_token_logps")
    advantages = batch["advantages"].view(len(mask_BT), -1)
    micro_batch = MicroBatch(
        logps_BT,
        logps_BT.detach() if old_logps_BT is None else old_logps_BT,
        advantages.expand(mask_BT.shape),
        mask_BT,
        *bounds,
        torch.Generator().manual_seed(seed % 2**63),
        current_world(),
    )
    found: Surrogate = method.function(micro_batch, **knobs)
    return found
