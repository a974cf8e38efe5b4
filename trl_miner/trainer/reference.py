"""The reference model in checkpoints, where `sync_ref_model` moves it: TRL's own checkpoints do not have it."""

import logging
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger(__name__)

FILE = "reference.pt"  # of a checkpoint


def save_reference(trainer: Any, checkpoint: Path) -> None:
    """Save the reference model in a checkpoint where the training moves it."""
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
            f"DeepSpeed or FSDP never does): it starts anew, so that this run will differ from an uninterrupted one."
        )
