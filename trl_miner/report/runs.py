"""The records of a run: ours, and those of TRL's own `GRPOTrainer`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class RunLog:
    """What a run has logged.

    Attributes:
        name: Of its folder.
        folder: The `output_dir`.
        log: A row per logged step, a column per metric; the index is the step. Scores on held-out
            problems begin with `eval_`.
        record: What is in `training.json`; empty for a run of TRL's own trainer.
    """

    name: str
    folder: Path
    log: "DataFrame"
    record: dict[str, Any]


def read_run(folder: str | Path) -> RunLog:
    """Return what the run in a folder has logged.

    `trainer_state.json` is read in the folder, else in its newest checkpoint.

    Raises:
        ValueError: The folder is missing or holds no run.
    """
    raise NotImplementedError


def read_completions(folder: str | Path) -> "DataFrame | None":
    """Return the completions that a run wrote with `log_completions`, or None where it wrote none.

    Columns are TRL's: step, prompt, completion, one per reward function, those of `log_extra`,
    advantage. A batch that TRL wrote at several steps is there once.
    """
    raise NotImplementedError
