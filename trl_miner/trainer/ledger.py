"""The prompt ledger in the trainer: how every prompt came out, at each visit. `runs.prompt_ledger` has the file.

# N rollouts of the global batch, P prompts of it, F reward functions, G = num_generations rollouts per prompt
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from datasets import IterableDataset
from torch import Tensor
from transformers import TrainerCallback

from ..distributed import current_world
from ..runs.prompt_ledger import (
    Batch,
    LedgerWriter,
    differences,
    find_home,
    header_line,
    header_of,
    key_text,
    parse_ledger,
    position_at,
    prompt_key,
    prompt_text,
    refusal,
    set_aside,
    take_up,
)
from .checkpointing import RunState
from .generation_batch import Visits, total_rewards
from .prompt_selection import make_selection

logger = logging.getLogger(__name__)


class PromptLedger(TrainerCallback):
    """Keeps the ledger of a trainer, the same on every process; the main one writes it.

    Attributes:
        selection: What `prompt_selection` makes of it; None: nothing.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._header: dict[str, Any] | None = None
        self._writer: LedgerWriter | None = None
        self._resumed_from: Path | None = None
        self._numbers: dict[str, int] = {}  # of the prompts, by key
        self.selection = make_selection(trainer.args)
        self._has_warned = False
        self._passed_over: dict[str, bool] = {}  # by key, what was decided for the batch under way

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Have the next generation batch, or micro-step, take up the ledger: by then the checkpoint is loaded."""
        self._writer, self._resumed_from = None, self._trainer.resumed_from

    def see(self, visits: Visits, rows: Sequence[Mapping[str, Any]], rewards_NF: Tensor) -> None:
        """Add prompts that were generated and scored to those of the batch. Every process must call it.

        Args:
            visits: What is known of the batch.
            rows: Of this process, as the data set has them.
            rewards_NF: (N, F) gathered rewards.
        """
        self.open()
        trainer, first = self._trainer, current_world().rank * len(rows)
        # A process looks at the prompts whose first rollout it has.
        own = {place: row for place, row in enumerate(rows) if (first + place) % trainer.num_generations == 0}
        keys_B = torch.tensor([prompt_key(own[place]) if place in own else 0 for place in range(len(rows))])
        keys_N = current_world().gather(keys_B.to(trainer.accelerator.device))
        keys = [key_text(key) for key in keys_N[:: trainer.num_generations].tolist()]
        rewards_PG = total_rewards(rewards_NF, trainer.reward_weights).view(len(keys), -1)
        verified_PG = trainer.verifier.rewards(rewards_NF).view(len(keys), -1)
        visits.add(keys, rewards_PG, verified_PG, trainer.args.correct_threshold)
        if not {*keys} <= self._numbers.keys():
            texts = {key_text(int(keys_B[place])): prompt_text(row) for place, row in own.items()}
            visits.texts |= dict(gather_object([pair for pair in texts.items() if pair[0] not in self._numbers]))

    def passes_over(self, key: str) -> bool:
        """Return whether `prompt_selection` passes over a prompt, by its key, in the batch under way."""
        if key not in self._passed_over:
            number, selection = self._numbers.get(key), self.selection
            self._passed_over[key] = number is not None and bool(selection and selection.passes_over(number, key))
        return self._passed_over[key]

    def record(self, visits: Visits) -> None:
        """Write the batch, once it is whole."""
        assert self._writer is not None, "`see` opens it"
        new = [(key, visits.texts[key]) for key in dict.fromkeys(visits.keys) if key not in self._numbers]
        self._numbers |= {key: len(self._numbers) + place for place, (key, _) in enumerate(new)}
        skipped = [key for key, is_skipped in self._passed_over.items() if is_skipped]
        batch = Batch(
            step=self._trainer.state.global_step + 1,
            rollouts=self._trainer.num_generations,
            prompts=[self._numbers[key] for key in visits.keys],
            correct=visits.correct,
            scored=visits.scored,
            reward=visits.reward,
            spread=visits.spread,
            new=new,
            dropped=visits.dropped,
            skipped=[self._numbers[key] for key in skipped if key not in visits.keys],
        )
        self._writer.append(batch.line())
        if self.selection is not None:
            self._warn_of_those_that_came_back([key for key in skipped if key in visits.keys])
            self.selection.observe(batch)
            self._trainer.log_train_metric("selection/skipped", float(len(batch.skipped)))
            for name, value in self.selection.metrics().items():
                self._trainer._metrics["train"][name] = [value]  # not appended: TRL logs the mean of what it finds
        self._passed_over.clear()

    def _warn_of_those_that_came_back(self, keys: list[str]) -> None:
        if keys and not self._has_warned and self._trainer.is_world_process_zero():
            logger.warning(
                f"prompt_selection: {self._trainer.args.prompt_selection} leaves fewer prompts than a batch takes: "
                f"{len(keys)} of those that it passes over came back to fill it. The policy may have learnt what "
                f"these data can teach; use more or harder prompts, or stop here."
            )
            self._has_warned = True

    def end_micro_step(self) -> None:
        """Keep the position for a checkpoint where a generation cycle ends. Every process must call it."""
        self.open()
        trainer = self._trainer
        if trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations) == 0:
            RunState.of(trainer).ledger = self.position()

    def position(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the ledger."""
        return {} if self._writer is None else self._writer.position

    def open(self) -> None:
        """Take up the ledger at the start of a training, new or resumed, once. Every process must call it."""
        if self._writer is not None:
            return
        trainer = self._trainer
        if self._header is None:
            rows = None if isinstance(trainer.train_dataset, IterableDataset) else trainer.train_dataset
            self._header = header_of(rows, trainer.args.correct_threshold)
        found: list[Any] = [b"", ""]
        if trainer.is_world_process_zero():
            found = [*self._beginning(self._header)]
        broadcast_object_list(found)
        beginning, problem = found
        if problem:
            raise ValueError(problem)
        ledger = parse_ledger(beginning)
        self._numbers = {key: number for number, key in enumerate(ledger.keys)}
        self._writer = LedgerWriter(trainer.args.output_dir, beginning, is_writing=trainer.is_world_process_zero())
        self.selection = make_selection(trainer.args)
        self._passed_over.clear()
        if self.selection is not None:
            for batch in ledger.batches:
                self.selection.observe(batch)

    def _beginning(self, header: dict[str, Any]) -> tuple[bytes, str]:
        """Return what the file begins with, a line about the data set or what the checkpoint knows; or why the run
        cannot go on."""
        args, position = self._trainer.args, RunState.of(self._trainer).ledger
        new, kept, problem = header_line(header), b"", ""
        try:
            if position:
                kept = take_up(find_home(self._resumed_from, args.output_dir), position)
                problem = differences(parse_ledger(kept).header, header)
            elif self.selection is not None and self._resumed_from is not None:
                position_at(self._resumed_from)  # raises an error where there was no ledger
        except (ValueError, OSError) as error:  # other processes wait for what this one finds
            kept, problem = b"", str(error)
        if problem and self.selection is not None:
            return b"", refusal(args.prompt_selection, problem)
        if not problem:
            return kept or new, ""
        logger.warning(f"The prompt ledger {'goes on with other data' if kept else 'begins anew'}: {problem}.")
        if kept:
            return kept + new, ""
        set_aside(args.output_dir)
        return new, ""
