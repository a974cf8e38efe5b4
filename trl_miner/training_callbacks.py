"""Callbacks that show a training: its progress on the terminal, and the page of token credit in trackers."""

import contextlib
import importlib
import logging
import time
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback

from .progress import Progress, is_quiet
from .runs.token_credit import FOLDER
from .runs.training_record import note

logger = logging.getLogger(__name__)

CREDIT = "token_credit"
PAGE_ROLLOUTS = 200  # a page of these, of 1000 tokens each, has 3 MB
_SHARE = 0.01  # of the training's time at most, but for the page at the end: it is of all records, and they grow

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


class ProgressNote(TrainerCallback):
    """Tells `trl-miner compare` how far the run is, at most twice a second. A full disk does not end a run for it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._written = folder, float("-inf")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_step_end(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = time.monotonic()
        if state.is_world_process_zero and (now - self._written > 0.5 or state.global_step >= state.max_steps):
            with contextlib.suppress(OSError, ValueError):
                note(self._folder, progress={"step": state.global_step, "of": state.max_steps})
            self._written = now


class TrainingProgress(TrainerCallback):
    """Shows progress over the optimizer steps, and `short_line` for each log."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            progress = Progress("training", state.max_steps, unit="steps", initial=state.global_step)
            self._progress = progress.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._progress is not None:
            self._progress.advance(state.global_step - self._progress.done)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self._progress is None or not logs:
            return
        if "reward" in logs:
            print(short_line(state.global_step, logs), flush=True)
        elif "eval_reward" in logs:  # of `eval_strategy`; `EvaluationCallback` says its own
            evaluated = {key.removeprefix("eval_"): value for key, value in logs.items()}
            print("evaluation at " + short_line(state.global_step, evaluated), flush=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def close(self, *error: Any) -> None:
        """Close the progress, with an exception's type, value and traceback where there is one."""
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.__exit__(*(error or (None, None, None)))


class CreditPageCallback(TrainerCallback):
    """Shows the token records in the trackers of the run, at checkpoints and at the end.

    trackio and Weights & Biases get the page of `trl-miner inspect` as `token_credit`. TensorBoard shows no pages; it
    gets the tokens with the most credit, as text and as a picture. Failures are warnings and never stop training.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._sent: set[Path] = set()
        self._rests_until = 0.0

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if time.monotonic() >= self._rests_until:
            self._send(args, state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._send(args, state)

    def _send(self, args: Any, state: Any) -> None:
        records = set((Path(args.output_dir) / FOLDER).glob("*.parquet"))
        if not state.is_world_process_zero or not records - self._sent:
            return
        self._sent, start = records, time.monotonic()
        for tracker in args.report_to:
            try:
                if tracker in ("trackio", "wandb"):
                    self._send_page(importlib.import_module(tracker), args.output_dir, state.global_step)
                elif tracker == "tensorboard":
                    self._send_table(args.output_dir, state.global_step)
            except Exception as error:  # theirs: a network, a disk, a version
                logger.warning(f"The page of token credit did not reach {tracker}: {error}")
        end = time.monotonic()
        self._rests_until = end + (end - start) / _SHARE

    @staticmethod
    def _send_page(tracker: Any, run: str, step: int) -> None:
        from .viewing.inspect import write_inspect_page

        path = write_inspect_page(run, max_rollouts=PAGE_ROLLOUTS)
        # not injected: the page has a policy of its own, which admits no style or script but its own
        tracker.log({CREDIT: tracker.Html(str(path), inject=False), "train/global_step": step})

    def _send_table(self, run: str, step: int) -> None:
        from .viewing.credit import credited_tokens_markdown, draw_credited_tokens, read_credit

        callbacks = self._trainer.callback_handler.callbacks
        writer = next(callback.tb_writer for callback in callbacks if isinstance(callback, TensorBoardCallback))
        credit = read_credit(run)
        writer.add_text(CREDIT, credited_tokens_markdown(credit, num_tokens=30), step)
        writer.add_figure(CREDIT, draw_credited_tokens(credit), step, close=False)
        writer.flush()
