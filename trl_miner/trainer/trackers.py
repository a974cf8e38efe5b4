"""The page of token credit in the trackers of a run: trackio, Weights & Biases, TensorBoard."""

import importlib
import logging
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from ..runs.token_credit import FOLDER

logger = logging.getLogger(__name__)

NAME = "token_credit"
PAGE_ROLLOUTS = 200  # a page of these, of 1000 tokens each, has 3 MB
_SHARE = 0.01  # of the training's time at most, but for the page at the end: it is of all records, and they grow


class CreditPageCallback(TrainerCallback):
    """Shows the token records in the trackers of the run, at checkpoints and at the end.

    trackio and Weights & Biases get the page of `trl-miner inspect` as `token_credit`. TensorBoard shows no pages; it
    gets the tokens that were paid most, as text and as a picture. Failures are warnings and never stop training.
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
        from ..viewing.inspect import write_inspect_page

        path = write_inspect_page(run, max_rollouts=PAGE_ROLLOUTS)
        # not injected: the page has a policy of its own, which admits no style or script but its own
        tracker.log({NAME: tracker.Html(str(path), inject=False), "train/global_step": step})

    def _send_table(self, run: str, step: int) -> None:
        from ..viewing.credit import draw_paid_tokens, paid_tokens_markdown, read_credit

        callbacks = self._trainer.callback_handler.callbacks
        writer = next(callback.tb_writer for callback in callbacks if isinstance(callback, TensorBoardCallback))
        credit = read_credit(run)
        writer.add_text(NAME, paid_tokens_markdown(credit, num_tokens=30), step)
        writer.add_figure(NAME, draw_paid_tokens(credit), step, close=False)
        writer.flush()
