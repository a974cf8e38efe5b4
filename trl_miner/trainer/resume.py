"""Exact resume: what a checkpoint keeps beside transformers' files, and how a training takes it up.

A checkpoint may lie inside a generation cycle, the optimizer steps that train on one batch. TRL
generates that batch again, by other weights; here the batch is kept, a file for each process.
transformers writes trainer_state.json after it, so that a whole checkpoint has it.
"""

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import gather_object, send_to_device

if TYPE_CHECKING:
    from .trainer import MinerGRPOTrainer

logger = get_logger(__name__)

# The settings on which the order of batches depends, besides the data and the processes.
LAYOUT = """
    per_device_train_batch_size gradient_accumulation_steps steps_per_generation num_iterations
    num_generations
    """.split()


def _file(trainer: "MinerGRPOTrainer", folder: Path) -> Path:
    return folder / f"generation_cycle_{trainer.accelerator.process_index}.pt"


def _layout(trainer: "MinerGRPOTrainer") -> list[Any]:
    return [trainer.accelerator.num_processes, *(getattr(trainer.args, name) for name in LAYOUT)]


def save_cycle(trainer: "MinerGRPOTrainer", folder: Path) -> None:
    """Write the batch under way and the place in it into a checkpoint's folder. Every process must
    call."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "layout": _layout(trainer),
        "step": trainer._step,
        "batches": trainer._buffered_inputs,
        "metrics": dict(trainer._metrics["train"]),
        "rounds": trainer.prompt_stream and trainer.prompt_stream.rounds,
    }
    torch.save(state, _file(trainer, folder))
    trainer.accelerator.wait_for_everyone()


def load_cycle(trainer: "MinerGRPOTrainer", folder: Path) -> bool:
    """Take up the batch that `save_cycle` wrote, on every process or on none: one that generated
    alone would wait for the others forever. Every process must call.

    Returns:
        Whether there is one. With another number of processes or other batches there is none, and a
        warning.
    """
    path, state = _file(trainer, folder), dict[str, Any]()
    if path.is_file():  # through the CPU: torch.load does not know accelerate's cpu:0
        state = torch.load(path, map_location="cpu", weights_only=True)
    if not all(gather_object([state.get("layout") == _layout(trainer)])):
        if any(folder.glob("generation_cycle_*.pt")):
            logger.warning(
                f"{folder.name} was saved with other batches or another number of processes. The"
                " run goes on with new completions, and will differ from an uninterrupted one."
            )
        return False
    trainer._step = state["step"]
    trainer._buffered_inputs = send_to_device(state["batches"], trainer.accelerator.device)
    trainer._metrics["train"].update(state["metrics"])
    if trainer.prompt_stream:
        trainer.prompt_stream.rounds = state["rounds"]
    return True


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
    for _ in range(passes):
        deque(sampler, maxlen=0)
