"""The note `finished` in `training.json`: all is written. A run that is started again then stays as it is."""

from pathlib import Path
from typing import Any

from .evaluation import AFTER, read_evaluation
from .files import read_object, read_optional, write_json
from .models import has_model
from .records import number
from .trainer_state import last_step
from .training_record import RECORD


def mark_finished(run: Path, steps: int, epochs: float | None) -> None:
    """Note that all is written: the optimizer steps, and the epochs if they set the length.

    `train` calls it last, on one process; `write_run_record` takes the note back when the run goes on.
    """
    path = run / RECORD
    if path.is_file():  # a folder that was deleted meanwhile has none, and then the next call writes all once more
        write_json(path, {**read_object(path), "finished": {"steps": steps, "epochs": epochs}})


def say_finished(settings: Any, *, is_scored: bool) -> str:
    """Return what to say of a finished run that the settings would resume; empty: there is something to do.

    As in transformers, `num_train_epochs` sets the length where `max_steps` is below 1. With `is_scored`, the final
    model must have its scores.
    """
    if not settings.output_dir or settings.resume_from_checkpoint in (None, "false", "False"):
        return ""
    run = Path(settings.output_dir)
    finished = read_optional(run / RECORD, []).get("finished")  # a damaged record is written again
    if not isinstance(finished, dict) or (steps := number(finished.get("steps"))) is None:
        return ""
    if settings.max_steps > 0:
        has_all = steps >= settings.max_steps
    else:
        has_all = (number(finished.get("epochs")) or 0) >= settings.num_train_epochs
    wanted = Path(settings.resume_from_checkpoint)  # a folder, or a word that stands for the newest checkpoint
    if not has_all or (wanted.is_dir() and (last_step(wanted) or 0) < steps):
        return ""
    if not has_model(run) or last_step(run) is None or (is_scored and AFTER not in read_evaluation(run, [])):
        return ""
    return (
        f"Nothing to do: {run} holds a finished run of {steps:.0f} steps, which stays as it is. To train on, raise "
        f"max_steps or num_train_epochs; to start from scratch, leave resume_from_checkpoint out."
    )
