"""Exact resume: what a checkpoint keeps beside transformers' files, and how a training takes it up.

A checkpoint may lie inside a generation cycle, the optimizer steps that train on one batch. TRL
generates that batch again, by other weights; here the batch is kept, a file for each process.
transformers writes trainer_state.json after it, so that a whole checkpoint has it.
"""

import logging
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device

logger = logging.getLogger(__name__)


def _file(folder: Path, accelerator: Accelerator) -> Path:
    return folder / f"generation_cycle_{accelerator.process_index}.pt"


def save_cycle(
    folder: Path, accelerator: Accelerator, layout: list[Any], state: Mapping[str, Any]
) -> None:
    """Write a state into a checkpoint's folder. Every process must call.

    Args:
        folder: Of the checkpoint.
        accelerator: The trainer's.
        layout: All numbers that the state depends on, such as batch sizes.
        state: Numbers, tensors, lists and dicts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layout = [accelerator.num_processes, *layout]
    torch.save({"layout": layout, **state}, _file(folder, accelerator))
    accelerator.wait_for_everyone()


def load_cycle(folder: Path, accelerator: Accelerator, layout: list[Any]) -> dict[str, Any] | None:
    """Return the state that `save_cycle` wrote, on every process or on none: one that generated
    alone would wait for the others forever. Every process must call.

    It is None, with a warning where that changes the training, if a process has no file, or if the
    layout is another one.

    Args:
        folder: Of the checkpoint.
        accelerator: The trainer's.
        layout: As in `save_cycle`.
    """
    path, kept = _file(folder, accelerator), None
    if path.is_file():  # through the CPU: torch.load does not know accelerate's cpu:0
        kept = torch.load(path, map_location="cpu", weights_only=True)
        if kept["layout"] != [accelerator.num_processes, *layout]:
            kept = None
    if all(gather_object([kept is not None])):
        state: dict[str, Any] = send_to_device(kept, accelerator.device)
        return state
    if accelerator.is_main_process and any(folder.glob("generation_cycle_*.pt")):
        logger.warning(
            f"{folder.name} was saved with other batches or another number of processes. The run"
            " goes on with new completions, so that it will differ from an uninterrupted one."
        )
    return None


def skip_passes(dataloader: Any, passes: int) -> None:
    """Go to the pass over the data in which a resumed run goes on; transformers skips batches
    inside that pass.

    TRL's sampler draws the order of every pass from one generator, which begins anew in a resumed
    run, so the orders of the earlier passes are drawn here and dropped.

    Args:
        dataloader: accelerate's.
        passes: That are done.
    """
    sampler = dataloader
    while (
        inner := getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    ) is not None:
        sampler = inner  # of a process's share of the batches, or of batches
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(passes)
        return
    for _ in range(passes):
        deque(sampler, maxlen=0)
