"""The prompts of a training where the trainer draws them itself, in the place of TRL's dataloader: for
`dynamic_sampling` and `prompt_selection`.
"""

import logging
from typing import Any

from datasets import IterableDataset
from trl.trainer.utils import RepeatSampler

from ..distributed import current_world
from ..runs.prompt_ledger import key_text, prompt_key
from .batch_fill import PromptStream
from .checkpointing import RunState
from .hooks import overridden

logger = logging.getLogger(__name__)


class PromptSource:
    """Draws prompts in the order of TRL's sampler, without those that `prompt_selection` passes over.

    Attributes:
        prompt_rows: The training set as TRL's dataloader reads it; set before the first batch.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._stream: PromptStream | None = None
        self._keys: dict[int, str] = {}  # of the prompts looked at, by index
        self.prompt_rows: Any = None
        args = trainer.args
        self._setting = "dynamic_sampling" if args.dynamic_sampling else f"prompt_selection: {args.prompt_selection}"
        if isinstance(trainer.train_dataset, IterableDataset):
            raise ValueError(
                f"{self._setting} draws prompts by their index: got a streaming training set. Load it without "
                f"streaming, or leave {self._setting} out."
            )
        num_prompts = len(trainer.train_dataset)
        num_groups = args.generation_batch_size // trainer.num_generations
        if num_prompts < 2 * num_groups:
            raise ValueError(
                f"{self._setting} needs a training set to choose from, of at least two batches: got {num_prompts} "
                f"prompts for batches of {num_groups}. Use more prompts, or a smaller batch."
            )

    def draw_rows(self, num_rows: int) -> list[Any]:
        """Return this process's rows of the next generation batch. Every process must call it."""
        num_groups = num_rows * current_world().size // self._trainer.num_generations
        return self.rows(self.stream().draw(num_groups, set()))

    def rows(self, indices: list[int]) -> list[Any]:
        """Return this process's share of the rows with these indices, each as often as it has rollouts."""
        repeated = [index for index in indices for _ in range(self._trainer.num_generations)]
        mine = repeated[current_world().local_slice(len(repeated) // current_world().size)]
        rows: list[Any] = self._trainer.data_collator([self.prompt_rows[index] for index in mine])
        return rows

    def state(self) -> dict[str, Any] | None:
        """Return the position of the prompt stream; None: it has not started."""
        return None if self._stream is None else self._stream.state()

    def end_micro_step(self) -> None:
        """Keep the stream's position for a checkpoint where a generation cycle ends.

        A checkpoint inside a cycle leads back to the cycle's own prompts, as it does in TRL.
        """
        trainer = self._trainer
        cycle = trainer.args.steps_per_generation * trainer.num_iterations
        if self._stream is not None and trainer._step % cycle == 0:
            RunState.of(trainer).stream = self._stream.state()

    def stream(self) -> PromptStream:
        """Return the prompt stream, at the position of the run's state when a training starts. Every process must call
        it at the start of a generation batch."""
        trainer, state = self._trainer, RunState.of(self._trainer)
        trainer.ledger.open()
        if self._stream is None or state.has_begun:
            if overridden(trainer, ("get_train_dataloader",)):
                raise ValueError(
                    f"{self._setting} draws prompts in the place of the dataloader: got {type(trainer).__name__}, "
                    f"which overrides get_train_dataloader. Change the training set instead, or leave "
                    f"{self._setting} out."
                )
            sampler = trainer._get_train_sampler(self.prompt_rows)
            if not isinstance(sampler, RepeatSampler):
                raise ValueError(
                    f"{self._setting} needs TRL's RepeatSampler: got {type(sampler).__name__} from "
                    f"_get_train_sampler. Leave {self._setting} out, or order the training set beforehand."
                )
            # The same order, prompt by prompt, and to the last one.
            sampler.mini_repeat_count = sampler.batch_size = sampler.repeat_count = 1
            is_selecting = trainer.ledger.selection is not None
            self._stream = PromptStream(sampler, len(self.prompt_rows), self._passes_over if is_selecting else None)
            if state.stream is not None:
                self._stream.load_state(state.stream)
            state.has_begun = False
        return self._stream

    def _passes_over(self, index: int) -> bool:
        if index not in self._keys:
            self._keys[index] = key_text(prompt_key(self.prompt_rows[index]))
        return bool(self._trainer.ledger.passes_over(self._keys[index]))
