"""The checkpoints of a run: which of them it goes on from, and when one is whole."""

import contextlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback
from transformers.trainer_utils import TrainOutput, rotate_checkpoints

from ..common.errors import RunEnded
from ..common.heartbeat import CHECKPOINT
from ..data.prompt_form import read_form
from ..methods.distributed import decided_by_one
from ..runs import checkpoints
from ..runs.checksums import Piece, digests_of, pieces_of
from ..runs.locks import check_run, hold_run
from ..runs.run_folder import clear, forget_after, must_clear
from ..runs.settings import changes_at, trainer_settings
from ..runs.training_record import write_run_record
from ..trainer.swaps import holding
from . import resharding
from .best_model import check_best_metric

logger = logging.getLogger(__name__)


def scale_learning_rate(optimizer: Any, scheduler: Any, before: float, now: float) -> None:
    """Bring an optimizer and its schedule, which a checkpoint has restored, from one learning rate
    to another.

    The checkpoint holds the rate of each group and where its schedule began; without this, the new
    setting would do nothing.
    """

    def scaled(rate: Any) -> Any:
        return now if rate == before else rate * (now / before)  # exact where it can be

    for group in optimizer.param_groups:
        group |= {name: scaled(group[name]) for name in ("lr", "initial_lr") if name in group}
    schedule = getattr(scheduler, "scheduler", scheduler)  # accelerate may wrap it
    for name in ("base_lrs", "_last_lr"):
        if hasattr(schedule, name):  # a schedule by plateaus keeps the groups' alone
            setattr(schedule, name, [scaled(rate) for rate in getattr(schedule, name)])


class NothingLeft(Exception):  # noqa: N818
    """Ends a training whose checkpoint has done all steps, before transformers makes one more."""


class Checkpointing(TrainerCallback):
    """Says which checkpoint a training goes on from, marks its checkpoints when they are whole, and
    watches its run folder."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        # Before all others: a training without a step left opens no tracker and starts no watchdog.
        trainer.callback_handler.callbacks.insert(0, self)
        # the checkpoint of the training in progress
        self.resumed_from: Path | None = None
        # the settings that change with this training, with both values
        self._changed: dict[str, tuple[str, str]] = {}
        # what `prepare` has returned, until a training takes it; empty: nothing
        self._prepared: list[str | None] = []

    def resume(self, wanted: str | bool | None) -> str | None:
        """Return the checkpoint that a training resumes from: `prepare`, unless it has returned
        just this, and the folder is ready."""
        asked = None if wanted in (None, False) else str(wanted)
        if asked not in self._prepared:
            self.prepare(wanted)
        checkpoint = self._prepared.pop()
        if checkpoint is not None:
            resharding.begin(self._trainer, Path(checkpoint))
        return checkpoint

    def prepare(self, wanted: str | bool | None) -> str | None:
        """Return the checkpoint to resume from, and make the run folder ready. Every process must
        call it.

        Raises:
            ValueError: There is no whole checkpoint, it has other settings, the folder is another
                run's, or `metric_for_best_model` names no metric.
        """
        check_best_metric(self._trainer)
        with hold_run(self._trainer.args.output_dir):
            # one decides: on other nodes a shared file system may not show the folder yet
            folder = decided_by_one(
                lambda: checkpoints.choose(wanted, Path(self._trainer.args.output_dir))
            )
            self._changed = decided_by_one(lambda: self._begin(wanted, folder))
        self.resumed_from = folder
        self._prepared = [None if folder is None else str(folder)]
        return self._prepared[0]

    def _begin(
        self, wanted: str | bool | None, checkpoint: Path | None
    ) -> dict[str, tuple[str, str]]:
        """Judge settings and folder, clear it, and write `training.json`. Return the settings that
        change here."""
        trainer, args = self._trainer, self._trainer.args
        about = dict(trainer.about)
        settings, step = trainer_settings(trainer, about.pop("others", ())), 0
        changes: list[dict[str, Any]] = []
        if checkpoint is not None:
            step = checkpoints.last_step(checkpoint) or 0
            changes = changes_at(checkpoint, step, settings)
        folder, model = Path(args.output_dir), trainer.model.config._name_or_path
        if must_clear(args, settings, wanted=wanted, checkpoint=checkpoint, model=model):
            clear(folder)
            print(
                f"{folder} is cleared of records, checkpoints and models of an earlier run.",
                flush=True,
            )
        forget_after(folder, step)
        folder.mkdir(parents=True, exist_ok=True)
        write_run_record(trainer, settings, changes=changes, **about)
        return changes[-1]["settings"] if changes and changes[-1]["step"] == step else {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the training if the checkpoint, which is loaded by now, has done all steps: see
        `end_at_once`."""
        if self.resumed_from is not None:
            resharding.finish(self._trainer, self.resumed_from)
        if self.resumed_from is not None and state.global_step >= state.max_steps:
            raise NothingLeft
        if "learning_rate" in self._changed:
            before, now = map(float, self._changed["learning_rate"])
            scale_learning_rate(self._trainer.optimizer, self._trainer.lr_scheduler, before, now)
        if self.resumed_from is not None and args.sync_ref_model and state.is_world_process_zero:
            logger.warning(
                f"{self.resumed_from.name} does not hold the reference model, which sync_ref_model"
                " moves: it starts anew, so that this run will differ from an uninterrupted one."
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check, before anything is written, that the run folder is still there and nobody
        else's."""
        check_run(args.output_dir)

    def end_at_once(self) -> TrainOutput:
        """End a training without a step left as transformers does, and return what it returns."""
        trainer, state, folder = self._trainer, self._trainer.state, self.resumed_from
        self.resumed_from = None
        assert folder is not None
        if trainer.prompt_form is None:  # a stream's is seen in its first batch, and there is none
            trainer.prompt_form = read_form(str(folder))
        trainer.accelerator.print(
            f"No step is left: {folder.name} has done {state.global_step} of {state.max_steps}."
            " Raise max_steps or num_train_epochs to train on."
        )
        if trainer.args.load_best_model_at_end and state.best_model_checkpoint is not None:
            trainer.load_best_model()
        trainer.is_in_train = False
        return TrainOutput(state.global_step, 0.0, {})

    def save(self, checkpoint: Path, write: Callable[[], None]) -> None:
        """Write a checkpoint, and mark it as whole when every process has. Every process must call
        it.

        The older ones are rotated behind the mark: a kill before it would otherwise leave none.
        """
        trainer, args = self._trainer, self._trainer.args
        with trainer.phase(CHECKPOINT):
            try:
                self._write(checkpoint, write)
            except Exception as error:
                raise self._why_not_written(error, checkpoint) from error
            if args.should_save:  # on each node with save_on_each_node
                best = trainer.state.best_model_checkpoint
                rotate_checkpoints(
                    str(checkpoint.parent), args.save_total_limit, best, use_mtime=True
                )
            trainer.accelerator.wait_for_everyone()

    def _write(self, checkpoint: Path, write: Callable[[], None]) -> None:
        trainer, accelerator = self._trainer, self._trainer.accelerator
        if accelerator.is_local_main_process:
            checkpoints.begin(checkpoint)
        accelerator.wait_for_everyone()
        # transformers would push it, and rotate the others before it is marked
        with holding(trainer.args, push_to_hub=False, save_total_limit=None):
            write()
        accelerator.wait_for_everyone()
        if accelerator.is_local_main_process and checkpoint.is_dir():
            checkpoints.bring_to_disk(checkpoint)
        accelerator.wait_for_everyone()
        self._finish(checkpoint)

    def _finish(self, checkpoint: Path) -> None:
        """Mark a checkpoint as whole; each process reads a share of it. Every process must call
        it."""
        trainer, accelerator = self._trainer, self._trainer.accelerator
        sizes = decided_by_one(lambda: checkpoints.sizes_of(checkpoint))
        share = pieces_of(sizes)[accelerator.process_index :: accelerator.num_processes]
        digests: dict[Piece, bytes] = {}
        # Another node's folder may be one of its own, or be shown late: the main process reads it.
        if accelerator.is_main_process or not trainer.args.save_on_each_node:
            with contextlib.suppress(OSError):
                if checkpoints.sizes_of(checkpoint) == sizes:
                    digests = digests_of(checkpoint, share)
        for other in gather_object([digests]):
            digests |= other
        decided_by_one(lambda: checkpoints.finish(checkpoint, sizes, digests))

    def _why_not_written(self, error: Exception, checkpoint: Path) -> Exception:
        folder = checkpoint.parent
        if self._trainer.accelerator.is_local_main_process:
            with contextlib.suppress(OSError):
                checkpoints.begin(checkpoint)  # what it holds is free again
        last, free = checkpoints.newest(folder), shutil.disk_usage(folder).free / 2**20
        return RunEnded(  # a library may hide that the disk is full
            f"{checkpoint.name} could not be written in {folder}, which has {free:.1f} MiB free:"
            f" {error}. The run can go on from"
            f" {last.name if last else 'the start: there is no other checkpoint'}."
        )
