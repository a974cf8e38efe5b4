"""What a run resumes: `RunState` in `trainer_state.json`, and checkpoints that are marked once they
are whole."""

import contextlib
import logging
import math
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from accelerate.utils import gather_object
from torch.utils.data import IterableDataset
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import TrainOutput, rotate_checkpoints

from ..data.prompt_form import read_form
from ..distributed import decided_by_one
from ..errors import RunEnded
from ..heartbeat import CHECKPOINT, phase
from ..runs import checkpoints
from ..runs.checksums import Piece, digests_of, pieces_of
from ..runs.locks import check_run, hold_run
from ..runs.run_folder import clear, forget_after, must_clear
from ..runs.settings import changes_at, trainer_settings
from ..runs.training_record import write_run_record
from .best_model import check_best_metric

logger = logging.getLogger(__name__)


class RunState(TrainerCallback, ExportableState):
    """Totals of a run; every checkpoint's `trainer_state.json` keeps them, and resuming restores
    them."""

    def __init__(self) -> None:
        self.generated = 0  # rollouts so far, on all processes, dropped ones included
        self.used = 0  # those of them that had an advantage
        self.tokens = 0  # completion tokens of all that was generated
        # Generation batches so far, each of which has a line in the prompt ledger, and the position
        # of the prompt stream; None: TRL draws the prompts. `cycle_start`: where the generation
        # cycle in progress began.
        self.prompts: dict[str, Any] = {"batches": 0, "stream": None}
        self.cycle_start = self.prompts
        self.dose: dict[str, Any] = {}  # what was asked for, and a `DoseState`; empty: not begun

    @classmethod
    def of(cls, trainer: Any) -> "RunState":
        """Return the state of a trainer; looked up each time, since transformers may replace it
        when it resumes."""
        return next(
            callback for callback in trainer.callback_handler.callbacks if isinstance(callback, cls)
        )

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, in transformers' form."""
        names = ("generated", "used", "tokens", "prompts", "cycle_start", "dose")
        return {"args": {}, "attributes": {name: getattr(self, name) for name in names}}

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        # transformers restores callbacks on request alone
        # (restore_callback_states_from_checkpoint); the order of the data is not a matter of
        # choice. At step 0 the state is that of an earlier training of this trainer.
        saved = state.stateful_callbacks.get(type(self).__name__, {}) if state.global_step else {}
        self.__dict__.update(vars(RunState()) | saved.get("attributes", {}))
        if state.global_step and not isinstance(train_dataloader.dataset, IterableDataset):
            skip_passes(train_dataloader, state.global_step, args.gradient_accumulation_steps)
        elif state.global_step and state.epoch > 1 and state.is_world_process_zero:
            logger.warning(
                "A streaming training set can be taken up within its first pass alone: the"
                " checkpoint lies later. The run begins the second pass, so that it will differ"
                " from an uninterrupted one. Load the set without streaming to go on exactly."
            )


def skip_passes(dataloader: Any, steps: int, accumulation: int) -> None:
    """Go to the pass over the data in which a resumed run goes on; transformers skips batches
    inside that pass.

    TRL's sampler draws the order of every pass from one generator, which begins anew in a resumed
    run, so the orders of the earlier passes are drawn here and dropped. A sampler with `set_epoch`
    is told the pass; transformers tells it on one process alone, where it also skips batches.

    `dataloader` is accelerate's. The run has done `steps` optimizer steps of `accumulation`
    micro-batches each; the last one of a pass may have fewer.
    """
    passes = steps // max(math.ceil(len(dataloader) / accumulation), 1)
    sampler = dataloader
    while (
        inner := getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    ) is not None:
        sampler = inner  # of a process's share of the batches, or of batches
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(passes)
        return
    for _ in range(passes):
        deque(sampler, maxlen=0)


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
    """Writes the checkpoints of a trainer, takes up its rollouts where they left off, and watches
    its run folder."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        # Before all others: a training without a step left opens no tracker and starts no watchdog.
        trainer.callback_handler.callbacks.insert(0, self)
        # the checkpoint of a training that begins; None once it is taken up
        self.resumed_from: Path | None = None
        # the settings that change with this training, with both values
        self._changed: dict[str, tuple[str, str]] = {}
        # what `prepare` has returned, until a training takes it
        self._prepared: list[str | None] = []

    def resume(self, wanted: str | bool | None) -> str | None:
        """Return the checkpoint that a training resumes from: `prepare`, once for each training."""
        checkpoint = self.prepare(wanted)
        self._prepared.clear()
        return checkpoint

    def prepare(self, wanted: str | bool | None) -> str | None:
        """Return the checkpoint to resume from, and make the run folder ready. Every process must
        call it.

        It does so once for each training.

        Raises:
            ValueError: There is no whole checkpoint, it has other settings, the folder is another
                run's, or `metric_for_best_model` names no metric.
        """
        if self._prepared:
            return self._prepared[0]
        check_best_metric(self._trainer)
        with hold_run(self._trainer.args.output_dir):
            # one decides: on other nodes a shared file system may not show the folder yet
            folder = decided_by_one(
                lambda: checkpoints.choose(wanted, Path(self._trainer.args.output_dir))
            )
            self._changed = decided_by_one(lambda: self._begin(wanted, folder))
        self.resumed_from = folder
        self._prepared.append(None if folder is None else str(folder))
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
            trainer._load_best_model()
        trainer.is_in_train = False
        return TrainOutput(state.global_step, 0.0, {})

    def restore_rollouts(self) -> None:
        """Take up the rollouts of the checkpoint, once, before the first training batch. Every
        process must call."""
        if self.resumed_from is None:
            return
        trainer, folder, run = self._trainer, self.resumed_from, RunState.of(self._trainer)
        place = trainer.accelerator.process_index, self._layout()
        device = trainer.accelerator.device
        rollouts = checkpoints.load_rollouts(folder, *place, device)
        if rollouts is not None:
            trainer._step, trainer._buffered_inputs = rollouts["micro_step"], rollouts["batches"]
        elif run.prompts != run.cycle_start:  # the cycle in progress is generated again
            run.prompts = run.cycle_start
            trainer.ledger.on_train_begin(trainer.args, trainer.state, trainer.control)
        self.resumed_from = None

    def _layout(self) -> list[int]:
        args = self._trainer.args
        sizes = (
            args.per_device_train_batch_size,
            args.gradient_accumulation_steps,
            args.steps_per_generation,
        )
        return [self._trainer.accelerator.num_processes, *sizes]

    def save(self, folder: Path, write: Callable[[], None]) -> None:
        """Write a checkpoint, and mark it as whole when every process has. Every process must call
        it.

        The older ones are rotated behind the mark: a kill before it would otherwise leave none.
        """
        trainer, args = self._trainer, self._trainer.args
        checkpoint = folder / f"{checkpoints.PREFIX}{trainer.state.global_step}"
        with phase(CHECKPOINT, trainer.state.global_step):
            try:
                self._write(checkpoint, write)
            except Exception as error:
                raise self._why_not_written(error, checkpoint) from error
            if args.should_save:  # on each node with save_on_each_node
                best = trainer.state.best_model_checkpoint
                rotate_checkpoints(str(folder), args.save_total_limit, best, use_mtime=True)
            trainer.accelerator.wait_for_everyone()

    def _write(self, checkpoint: Path, write: Callable[[], None]) -> None:
        trainer, accelerator = self._trainer, self._trainer.accelerator
        if accelerator.is_local_main_process:
            checkpoints.begin(checkpoint)
        accelerator.wait_for_everyone()
        with (
            patch.object(trainer.args, "push_to_hub", False),
            patch.object(trainer.args, "save_total_limit", None),
        ):
            write()
        self._save_rollouts(checkpoint)
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

    def _save_rollouts(self, checkpoint: Path) -> None:
        """Save the rollouts of a generation cycle that the checkpoint lies in the middle of."""
        trainer = self._trainer
        batches = getattr(trainer, "_buffered_inputs", None)
        if batches is None:  # those of an asynchronous run come out of a queue
            return
        step = trainer._step
        if step % (trainer.args.steps_per_generation * trainer.num_iterations) != 0:
            checkpoints.save_rollouts(
                checkpoint, trainer.accelerator.process_index, self._layout(), batches, step
            )

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
