"""`policy_loss`: other advantages and clipping bounds in TRL's loss, between its forward and its
arithmetic.

# B rows of a micro-batch, T padded completion tokens
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from ..methods.micro_batch import MicroBatch
from ..methods.processes import current_world
from .compact_step import Batch, loss_mask

if TYPE_CHECKING:
    from .trainer import MinerGRPOTrainer


@dataclass(frozen=True)
class Watched:
    """A model in TRL's loss, and who looks at what TRL's forward returns of it."""

    model: Any
    look: Callable[[Any], None]


def policy_loss(trainer: "MinerGRPOTrainer", model: Any, inputs: Batch) -> Tensor:
    """Return TRL's loss of a micro-batch with the advantages and bounds that `policy_loss` finds
    once its forward is done, on copies of the trainer and of the inputs. Every process must call.

    Args:
        trainer: A `MinerGRPOTrainer`.
        model: As TRL's loss has it.
        inputs: The micro-batch.
    """
    view, seen, mask_BT = copy(trainer), dict(inputs), loss_mask(inputs)
    # of this place in the run: a resumed one draws the same, and so does each process
    generator = torch.Generator().manual_seed(trainer.args.seed * 2**20 + trainer._step)

    def look(scores: Any) -> None:
        method, knobs = trainer.args.policy_loss_method
        micro_batch = MicroBatch(
            scores[0],
            inputs.get("old_per_token_logps", scores[0].detach()),
            inputs["advantages"].view(len(mask_BT), -1).expand(mask_BT.shape),
            mask_BT,
            trainer.epsilon_low,
            trainer.epsilon_high,
            generator,
            current_world(),
        )
        found = method.function(micro_batch, **knobs)
        seen["advantages"] = found.advantages_BT
        if found.epsilon_low is not None:
            view.epsilon_low, view.epsilon_high = found.epsilon_low, found.epsilon_high
        for name, value in found.metrics.items():
            trainer._metrics["train"][name].append(value)

    return GRPOTrainer._compute_loss(view, Watched(model, look), seen)
