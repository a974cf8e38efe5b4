"""The prompt ledger of a run, written batch by batch. `runs.prompt_ledger` has the file."""

import logging
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

from ..runs.prompt_ledger import (
    Batch,
    append_batch,
    begin_ledger,
    parse_ledger,
    read_beginning,
)
from ..trainer.observers import ScoredBatch

logger = logging.getLogger(__name__)


class LedgerFile(TrainerCallback):
    """Writes a line for each generation batch, on the main process. Nothing of a training depends
    on it."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._numbers: dict[str, int] = {}  # of the prompts, by key, in their order
        self._num_lines = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Go on behind the lines of the run that the training goes on with."""
        if not PartialState().is_main_process:
            return
        lines: list[bytes] = []
        if self._trainer.resumed_from is not None:
            try:
                lines = read_beginning(self._trainer.resumed_from.parent, self._num_lines)
            except (ValueError, OSError) as error:
                logger.warning(f"The prompt ledger begins anew: {error}.")
        self._numbers = {
            key: number for number, key in enumerate(parse_ledger(b"".join(lines)).keys)
        }
        self._num_lines = len(lines)
        begin_ledger(args.output_dir, lines)

    def state_dict(self) -> dict[str, Any]:
        """Return how many lines a checkpoint has before it: the file is cut there."""
        return {"lines": self._num_lines}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind so many lines."""
        self._num_lines = state["lines"]

    def observe(self, batch: ScoredBatch) -> None:
        if not PartialState().is_main_process:
            return
        outcomes, numbers = batch.outcomes, self._numbers
        texts = dict(zip(outcomes.keys, outcomes.texts, strict=True))
        new = [pair for pair in texts.items() if pair[0] not in numbers]
        numbers |= {key: len(numbers) + place for place, (key, _) in enumerate(new)}
        line = Batch(
            step=batch.step,
            rollouts=outcomes.rollouts,
            prompts=[numbers[key] for key in outcomes.keys],
            correct=outcomes.correct,
            scored=outcomes.scored,
            spread=outcomes.spread,
            new=new,
            dropped=outcomes.dropped,
            skipped=[numbers[key] for key in outcomes.left_out if key in numbers],
        )
        append_batch(Path(self._trainer.args.output_dir), line)
        self._num_lines += 1
