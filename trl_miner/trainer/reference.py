"""The reference model: `kl_on: rows_with_advantage`, a KL penalty on those rows alone, and a reference that scores no
others; and in checkpoints, where `sync_ref_model` moves it.

TRL's penalty of a token is exp(r - p) - (r - p) - 1, with the log-probs r of the reference and p of the policy. Where
r is p, the penalty and its slope are exactly 0. So for every other row TRL's loss gets the policy's own log-probs.

# B rows of one of TRL's batches, T padded completion tokens
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..distributed import current_world
from ..rules import ROWS_WITH_ADVANTAGE
from .micro_batches import rows_with_effect
from .padding import loss_mask
from .patching import patched

logger = logging.getLogger(__name__)

FILE = "reference.pt"  # of a checkpoint
REFERENCE = "ref_per_token_logps"  # TRL's name
HAS_REFERENCE = "miner_has_reference"  # (B,) in a batch of TRL's, from the advantages to the loss


def is_scored_late(trainer: Any) -> bool:
    """Return whether the reference waits for the advantages, to score rows with one alone."""
    return bool(trainer.args.kl_on == ROWS_WITH_ADVANTAGE and trainer.beta != 0.0)


@contextmanager
def without_reference(trainer: Any) -> Iterator[None]:
    """Have TRL generate and score a batch without its forward of the reference."""
    with patched(trainer, "beta", 0.0):
        yield


def add_reference(trainer: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with the reference's log-probs of its rows with an advantage. Every process must call it."""
    is_row_B = torch.from_numpy(rows_with_effect(batch, has_kl=False)).to(batch["advantages"].device)
    is_row_N = current_world().gather(is_row_B)
    if is_row_N.any():
        logps_BT = trainer.forwards.reference_of_rows(batch, is_row_N)
    else:
        logps_BT = torch.zeros(batch["completion_ids"].shape, device=is_row_B.device)
    return {**batch, REFERENCE: logps_BT, HAS_REFERENCE: is_row_B}


def fill_reference(inputs: dict[str, Any], logps_BT: Tensor) -> None:
    """Give the rows without a reference the policy's log-probs, between the forward and TRL's loss."""
    if HAS_REFERENCE in inputs:
        has_it_B1 = inputs[HAS_REFERENCE].unsqueeze(1)
        inputs[REFERENCE] = torch.where(has_it_B1, inputs[REFERENCE], logps_BT.detach())


def average_kl(trainer: Any, inputs: dict[str, Any]) -> None:
    """Make `kl`, as TRL has just logged it, a mean over the rows with a reference. Every process must call it.

    TRL has divided by the tokens of all rows. (It logs no mean with a NaN, which is what no row has.)
    """
    if HAS_REFERENCE not in inputs or trainer.beta == 0.0:
        return
    counts_B = loss_mask(inputs).sum(dim=1)
    counts_2 = torch.stack([counts_B.sum(), counts_B[inputs[HAS_REFERENCE]].sum()])
    counted, kept = current_world().sum(counts_2).tolist()
    trainer._metrics["train"]["kl"][-1] *= counted / kept if kept else torch.nan


def save_reference(trainer: Any, checkpoint: Path) -> None:
    """Save the reference model in a checkpoint where the training moves it; TRL's own checkpoints do not have it."""
    args, is_sharded = trainer.args, trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    if args.sync_ref_model and args.should_save and not (args.save_only_model or is_sharded):
        torch.save(trainer.accelerator.unwrap_model(trainer.ref_model).state_dict(), checkpoint / FILE)


def restore_reference(trainer: Any, checkpoint: Path) -> None:
    """Take up what `save_reference` kept, or warn that there is none. Every process must call it."""
    if not trainer.args.sync_ref_model:
        return
    if (checkpoint / FILE).is_file():
        weights = torch.load(checkpoint / FILE, map_location="cpu", weights_only=True)
        trainer.accelerator.unwrap_model(trainer.ref_model).load_state_dict(weights)
    elif trainer.is_world_process_zero():
        logger.warning(
            f"{checkpoint.name} does not hold the reference model, which sync_ref_model moves (a checkpoint of "
            f"DeepSpeed, FSDP or save_only_model never does): it starts anew, so that this run will differ from an "
            f"uninterrupted one."
        )
