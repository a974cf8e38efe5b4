"""Callbacks that show how far a training is: on the terminal, and to `trl-miner compare`."""

from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from .progress import Progress, is_quiet

# What to show: metric, title, format. Shares are per cent of the generation batch.
_SHOWN = (
    ("reward", "reward", "{:.3f}"),
    ("groups/ph", "all right", "{:.0%}"),
    ("rollouts/grpo", "GRPO uses", "{:.0%}"),
    ("rollouts/recovered", "recovered", "{:.0%}"),
    ("entropy", "entropy", "{:.3f}"),
    ("step_time", "s/step", "{:.2f}"),
)


def short_line(step: int, logs: dict[str, Any]) -> str:
    """Return one log as one line; metrics that it lacks are left out."""
    parts = [f"{title} {form.format(logs[key])}" for key, title, form in _SHOWN if logs.get(key) is not None]
    return f"step {step}: " + ", ".join(parts)


def show_training(trainer: Any) -> "TrainingProgress":
    """Replace transformers' bar and its dictionaries of numbers, and return the callback, to be closed at the end.

    With `--quiet` nothing replaces them, with `disable_tqdm` the dictionaries stay.
    """
    progress = TrainingProgress()
    if is_quiet():
        trainer.remove_callback(PrinterCallback)
    if is_quiet() or not trainer.args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
    if not is_quiet() and not trainer.args.disable_tqdm:
        trainer.add_callback(progress)
    return progress


class TrainingProgress(TrainerCallback):
    """Shows progress over the optimizer steps, and `short_line` for each log."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._progress = Progress("training", state.max_steps, unit="steps", initial=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._progress is not None:
            self._progress.advance(state.global_step - self._progress.n)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self._progress is not None and logs and "reward" in logs:
            print(short_line(state.global_step, logs), flush=True)

    def close(self, *error: Any) -> None:
        """Close the progress, with an exception's type, value and traceback where there is one."""
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.__exit__(*(error or (None, None, None)))
