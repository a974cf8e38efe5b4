"""The prompt ledger of a training: how every prompt came out, in each generation batch.
`runs.prompt_ledger` has the file.

# B rollouts of this process, N of the global batch, P prompts of it, G = num_generations rollouts
per prompt
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import Tensor
from transformers import TrainerCallback

from ..distributed import current_world, decided_by_one
from ..runs.prompt_ledger import (
    Batch,
    append_batch,
    begin_ledger,
    key_text,
    parse_ledger,
    prompt_key,
    prompt_text,
    read_beginning,
)
from .run import RunState
from .selection import make_selection

logger = logging.getLogger(__name__)


@dataclass
class PromptOutcomes:
    """How the prompts of a generation batch came out, round by round."""

    keys: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    correct: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    spread: list[float | None] = field(default_factory=list)
    dropped: Sequence[int] = ()  # places in `keys`

    def add(
        self,
        rows: Sequence[Mapping[str, Any]],
        rewards_N: Tensor,
        verifier_rewards_N: Tensor,
        *,
        num_generations: int,
        correct_threshold: float,
    ) -> None:
        """Add the prompts of a round. Every process must call it, with the B `rows` of its
        rollouts.

        A reward of NaN was not scored; a rollout is correct from the verifier's reward
        `correct_threshold` on.
        """
        first = current_world().rank * len(rows)
        # A process looks at the prompts whose first rollout it has.
        own = [row for place, row in enumerate(rows, first) if place % num_generations == 0]
        found = gather_object([(key_text(prompt_key(row)), prompt_text(row)) for row in own])
        self.keys += [key for key, _ in found]
        self.texts += [text for _, text in found]
        rewards_PG, verified_PG = (
            values.view(-1, num_generations) for values in (rewards_N, verifier_rewards_N)
        )
        self.correct += (verified_PG >= correct_threshold).sum(dim=1).tolist()
        self.scored += (~verified_PG.isnan()).sum(dim=1).tolist()
        is_unknown_PG = rewards_PG.isnan()
        lowest_P = rewards_PG.masked_fill(is_unknown_PG, torch.inf).amin(dim=1)
        highest_P = rewards_PG.masked_fill(is_unknown_PG, -torch.inf).amax(dim=1)
        self.spread += _numbers(highest_P - lowest_P)


def _numbers(values_P: Tensor) -> list[float | None]:
    """Return numbers to six digits, which is what the file has; None for those that are not
    finite."""
    is_finite = values_P.isfinite().tolist()
    return [
        float(f"{value:.6g}") if ok else None
        for value, ok in zip(values_P.tolist(), is_finite, strict=True)
    ]


class PromptLog(TrainerCallback):
    """Keeps the ledger of a training, the same on every process; the main one writes it.

    Attributes:
        selection: What `prompt_selection` makes of it; None: nothing.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._args = trainer, trainer.args
        self._numbers: dict[str, int] = {}  # of the prompts, by key, in their order
        self._num_correct: Counter[int] = Counter()  # rollouts so far, by prompt
        self._newest: list[int] = []  # keys of the prompts of the newest batch
        self._before: list[int] = []  # `_num_correct` of each of them, before this batch
        self.selection = make_selection(trainer.args)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take up the ledger of the run that the training goes on with. Every process must call it.

        Raises:
            ValueError: It does not fit the checkpoint, and `prompt_selection` needs it.
        """
        lines = decided_by_one(self._read)
        if not lines:  # count from 0 again
            run = RunState.of(self._trainer)
            run.prompts, run.cycle_start = (
                run.prompts | {"batches": 0},
                run.cycle_start | {"batches": 0},
            )
        ledger = parse_ledger(b"".join(lines))
        self._numbers = {key: number for number, key in enumerate(ledger.keys)}
        if PartialState().is_main_process:
            begin_ledger(self._args.output_dir, lines)
        self.selection = make_selection(self._args)
        self._num_correct.clear()
        for batch in ledger.batches:
            self._observe(batch, [ledger.keys[number] for number in batch.prompts])

    def _read(self) -> list[bytes]:
        checkpoint = self._trainer.resumed_from
        if checkpoint is not None:
            try:
                return read_beginning(
                    checkpoint.parent, RunState.of(self._trainer).prompts["batches"]
                )
            except (ValueError, OSError) as error:
                if reader := self._reader():
                    raise ValueError(
                        f"{reader} needs the prompt ledger of the run that it resumes: {error}."
                        " Restore it."
                    ) from error
                logger.warning(f"The prompt ledger begins anew: {error}.")
        return []

    def _reader(self) -> str:
        """Return the setting that decides by the past of prompts; empty: none does."""
        if self.selection is not None:
            return f"prompt_selection: {self._args.prompt_selection}"
        methods = [method.name for method in self._args.estimators if method.reads_past]
        return f"advantage_estimator: {methods[0]}" if methods else ""

    def _observe(self, batch: Batch, keys: Sequence[str]) -> None:
        """Take a line of the ledger into account, with the keys of its prompts."""
        if self.selection is not None:
            self.selection.observe(batch, keys)
        dropped = {*batch.dropped}
        self._newest = [int(key, 16) for i, key in enumerate(keys) if i not in dropped]
        self._before = [
            self._num_correct[number] for i, number in enumerate(batch.prompts) if i not in dropped
        ]
        for number, correct in zip(batch.prompts, batch.correct, strict=True):
            self._num_correct[number] += correct

    def past_correct(self) -> Tensor:
        """Return (N,), how many rollouts of each one's prompt in the newest batch were correct
        before this batch."""
        return torch.tensor(self._before).repeat_interleave(self._trainer.num_generations)

    def prompt_keys(self) -> Tensor:
        """Return (N,), the key of each rollout's prompt in the newest batch."""
        return torch.tensor(self._newest).repeat_interleave(self._trainer.num_generations)

    def record(self, outcomes: PromptOutcomes, step: int) -> None:
        """Write a batch that is complete, and log what the selection made of it.

        `step` is the first optimizer step that trains on it.
        """
        numbers, texts = self._numbers, dict(zip(outcomes.keys, outcomes.texts, strict=True))
        new = [pair for pair in texts.items() if pair[0] not in numbers]
        numbers |= {key: len(numbers) + place for place, (key, _) in enumerate(new)}
        left_out = (
            []
            if self.selection is None
            else [key for key in self.selection.left_out if key not in texts]
        )
        batch = Batch(
            step=step,
            rollouts=self._trainer.num_generations,
            prompts=[numbers[key] for key in outcomes.keys],
            correct=outcomes.correct,
            scored=outcomes.scored,
            spread=outcomes.spread,
            new=new,
            dropped=outcomes.dropped,
            skipped=[numbers[key] for key in left_out if key in numbers],
        )
        if PartialState().is_main_process:
            append_batch(self._args.output_dir, batch)
        self._observe(batch, outcomes.keys)
        if self.selection is not None:
            found = {"selection/skipped": float(len(left_out)), **self.selection.metrics()}
            for name, value in found.items():
                self._trainer.log_train_metric(name, value)
