"""The trackers of a run: whether they can be used, and the page of token credit in them."""

import importlib
import inspect
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback, get_reporting_integration_callbacks
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from ..errors import first_line
from ..importing import did_you_mean
from ..runs.token_credit import FOLDER

logger = logging.getLogger(__name__)

NAME = "token_credit"
PAGE_ROLLOUTS = 200  # a page of these, of 1000 tokens each, has 3 MB
_SHARE = 0.01  # of the training's time at most, but for the page at the end: it is of all records, and they grow


def why_unusable(trackers: Sequence[str]) -> str:
    """Return why one of the trackers cannot be used, which transformers says once the model is loaded; empty: all can.

    A tracker must be known and installed, and Weights & Biases needs a login unless it is offline or disabled.
    """
    for name in trackers:
        if name not in INTEGRATION_TO_CALLBACK:
            known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
            hint = did_you_mean(name, INTEGRATION_TO_CALLBACK)
            return f"report_to must name trackers: got {name!r}.{hint} Known: {known}."
        try:
            get_reporting_integration_callbacks([name])[0]()
        except Exception as error:  # theirs, of any type
            return (
                f"report_to needs an installed tracker: got {name!r} ({first_line(error)}). Install it, choose "
                f"another, or set report_to: none."
            )
    why = _why_no_login() if "wandb" in trackers else None
    advice = "Run `wandb login`, set WANDB_API_KEY, or set WANDB_MODE=offline to log into a folder."
    return f"report_to: wandb needs a login: {why}. {advice}" if why else ""


def _why_no_login() -> str | None:
    import wandb

    if wandb.run is not None or wandb.setup().settings.mode not in ("online", "shared"):
        return None
    if "prompt" not in inspect.signature(wandb.login).parameters:  # an older version, which would ask here
        return None
    try:
        return None if wandb.login(prompt=False, verify=False) else "got no key in the environment or in .netrc"
    except Exception as error:  # a key that is none
        return first_line(error)


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
