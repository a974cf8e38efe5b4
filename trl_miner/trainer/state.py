"""The state of the trainer that a checkpoint keeps beside transformers', and how a training takes
it up.

`miner_state.json` has the state of each part of the trainer. Inside a generation cycle
`rollouts_RANK.pt` has the rollouts that are still to be trained.
"""

import copy
import json
import logging
import math
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate.utils import gather_object, send_to_device
from torch.utils.data import IterableDataset
from transformers import TrainerCallback

from ..methods.distributed import decided_by_one
from .trl_names import get_last_checkpoint

logger = logging.getLogger(__name__)

STATE = "miner_state.json"
ROLLOUTS = "rollouts_{rank}.pt"


class Part(Protocol):
    """A part of the trainer with a state of its own, which is JSON."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Trained(Protocol):
    """What is read of a trainer, and how its rollouts are taken and given back."""

    args: Any
    accelerator: Any

    def is_world_process_zero(self) -> bool: ...
    def rollouts_under_way(self) -> tuple[list[dict[str, Any]], int] | None: ...
    def take_rollouts(self, batches: list[dict[str, Any]], micro_step: int) -> None: ...


@dataclass
class Totals:
    """Totals of a training, from its first step on, over all processes."""

    generated: int = 0  # rollouts, dropped ones included
    used: int = 0  # those of them that had an advantage
    tokens: int = 0  # completion tokens of all that was generated

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class ResumableState(TrainerCallback):
    """Saves the parts of a trainer with each checkpoint, and restores them when a training resumes.

    A training that starts anew finds the parts as they were when they were added.
    """

    def __init__(self, trainer: Trained) -> None:
        self._trainer = trainer
        self._parts: dict[str, Part] = {}
        self._fresh: dict[str, Any] = {}  # their states at the start
        # Parts that follow the generation batches, and where they were when the generation cycle
        # in progress began: a cycle that is generated again begins there.
        self._by_batch: set[str] = set()
        self._cycle_start: dict[str, Any] = {}
        self._checkpoint: Path | None = None  # of a training that is about to resume

    def add(self, name: str, part: Part, *, follows_batches: bool = False) -> None:
        """Keep the state of a part under a name."""
        self._parts[name] = part
        self._fresh[name] = copy.deepcopy(part.state_dict())
        if follows_batches:
            self._by_batch.add(name)

    def begin(self, wanted: str | bool | None) -> None:
        """Note the checkpoint that a training is about to resume from: what transformers makes of
        `resume_from_checkpoint`."""
        folder = get_last_checkpoint(self._trainer.args.output_dir) if wanted is True else wanted
        self._checkpoint = Path(folder) if folder else None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        """Restore all parts. Every process must call it."""
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is None:
            self._load(self._fresh)
            self.end_cycle()
            return
        self._resume(checkpoint)
        if not isinstance(train_dataloader.dataset, IterableDataset):
            skip_passes(train_dataloader, state.global_step, args.gradient_accumulation_steps)
        elif state.epoch > 1 and state.is_world_process_zero:
            logger.warning(
                "A streaming training set can be taken up within its first pass alone: the"
                " checkpoint lies later. The run begins the second pass, so that it will differ"
                " from an uninterrupted one. Load the set without streaming to go on exactly."
            )

    def _resume(self, checkpoint: Path) -> None:
        saved = decided_by_one(lambda: _read(checkpoint))
        self._load(self._fresh | saved.get("parts", {}))
        self.end_cycle()
        if not saved and self._trainer.is_world_process_zero():
            logger.warning(
                f"{checkpoint.name} has no {STATE}: another trainer has made it. What methods and"
                " prompt_selection know of the past of prompts begins anew."
            )
        self._cycle_start = self._cycle_start | saved.get("cycle_start", {})
        rollouts = load_rollouts(
            checkpoint,
            self._trainer.accelerator.process_index,
            self._layout(),
            self._trainer.accelerator.device,
        )
        if rollouts is not None:
            self._trainer.take_rollouts(rollouts["batches"], rollouts["micro_step"])
        else:  # the cycle in progress is generated again
            self._load(self._cycle_start)

    def _load(self, states: dict[str, Any]) -> None:
        for name, part in self._parts.items():
            if name in states:
                part.load_state_dict(copy.deepcopy(states[name]))

    def end_cycle(self) -> None:
        """Note that the next generation cycle begins here."""
        self._cycle_start = copy.deepcopy(
            {name: self._parts[name].state_dict() for name in self._by_batch}
        )

    def save(self, checkpoint: Path) -> None:
        """Write the states into a checkpoint's folder. Every process must call it."""
        checkpoint.mkdir(parents=True, exist_ok=True)
        if self._trainer.args.save_only_model:
            return
        if self._trainer.args.should_save:
            parts = {name: part.state_dict() for name, part in self._parts.items()}
            text = json.dumps({"parts": parts, "cycle_start": self._cycle_start})
            (checkpoint / STATE).write_text(text, encoding="utf-8")
        rollouts = self._trainer.rollouts_under_way()
        if rollouts is not None:
            batches, micro_step = rollouts
            kept = {"layout": self._layout(), "batches": batches, "micro_step": micro_step}
            rank = self._trainer.accelerator.process_index
            torch.save(kept, checkpoint / ROLLOUTS.format(rank=rank))

    def _layout(self) -> list[int]:
        """Return all that a process's buffer of rollouts depends on besides the settings."""
        args = self._trainer.args
        return [
            self._trainer.accelerator.num_processes,
            args.per_device_train_batch_size,
            args.gradient_accumulation_steps,
            args.steps_per_generation,
        ]


def _read(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / STATE
    if not path.is_file():
        return {}
    states: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return states


def load_rollouts(
    checkpoint: Path, rank: int, layout: list[int], device: torch.device
) -> dict[str, Any] | None:
    """Return what `ResumableState.save` kept of the rollouts, on every process or on none. Every
    process must call it.

    It is None where the checkpoint lies at the end of a generation cycle, and where the rollouts
    have another layout. Then all generate again, as TRL does; a process that generated alone would
    wait for the others forever.
    """
    path, kept = checkpoint / ROLLOUTS.format(rank=rank), None
    if path.is_file():  # through the CPU: torch.load does not know accelerate's cpu:0
        kept = send_to_device(torch.load(path, map_location="cpu", weights_only=True), device)
    if all(gather_object([kept is not None and kept["layout"] == layout])):
        return kept
    if rank == 0 and any(checkpoint.glob(ROLLOUTS.format(rank="*"))):
        logger.warning(
            f"{checkpoint.name} lies inside a generation cycle, whose rollouts were made with other"
            " batches or processes. They are generated again, so that this run will differ from an"
            " uninterrupted one."
        )
    return None


def skip_passes(dataloader: Any, steps: int, accumulation: int) -> None:
    """Go to the pass over the data in which a resumed run goes on; transformers skips batches
    inside that pass.

    TRL's sampler draws the order of every pass from one generator, which begins anew in a resumed
    run, so the orders of the earlier passes are drawn here and dropped. A sampler with `set_epoch`
    is told the pass; transformers tells it on one process alone, where it also skips batches.

    `dataloader` is accelerate's. The run has done `steps` optimizer steps of `accumulation`
    micro-batches each; the last one of a pass may have fewer.
    """
    passes = steps // max(math.ceil(len(dataloader) / accumulation), 1)
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
