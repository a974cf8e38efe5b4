"""Checkpoints that are whole or not there at all, and what a run takes up from them, inside a generation cycle too."""

import json
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import TrainOutput, rotate_checkpoints

from ..redaction import redact
from ..runs import checkpoints
from ..runs.locks import check_run
from ..runs.trainer_state import FILE as STATE

logger = logging.getLogger(__name__)


class RunState(TrainerCallback, ExportableState):
    """Totals of a run; every checkpoint's `trainer_state.json` keeps them, and resuming restores them."""

    def __init__(self) -> None:
        self.generated = 0  # rollouts so far, on all processes, dropped ones included
        self.used = 0  # those of them that had an advantage
        self.tokens = 0  # completion tokens of all that was generated
        self.stream: dict[str, Any] | None = None  # the position of dynamic sampling's prompts; None: not started
        self.ledger: dict[
            str, Any
        ] = {}  # where the prompt ledger is, at the end of a generation cycle; empty: nowhere
        self.memory: dict[str, Any] = {}  # what estimators keep from batch to batch, by method
        self.dose: dict[str, Any] = {}  # what was asked for, and a `DoseState`; empty: not begun
        self.has_begun = False  # whether training has begun (again) since this was last set to False
        # The factors on the temperature at which this training has compared the sampler's log-probs with its own, and
        # the sums of each comparison: see `sampler_check.compare`.
        self.checked_heats: set[float] = set()
        self.sampler_sums: dict[float, Tensor] = {}

    @classmethod
    def of(cls, trainer: Any) -> "RunState":
        """Return the state of a trainer; looked up each time, since transformers may replace it when it resumes."""
        return next(callback for callback in trainer.callback_handler.callbacks if isinstance(callback, cls))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, in transformers' form."""
        names = ("generated", "used", "tokens", "stream", "ledger", "memory", "dose")
        return {"args": {}, "attributes": {name: getattr(self, name) for name in names}}

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        # transformers restores callbacks on request alone (restore_callback_states_from_checkpoint); the order of the
        # data is not a matter of choice.
        for name, value in state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {}).items():
            setattr(self, name, value)
        self.has_begun, self.checked_heats, self.sampler_sums = True, set(), {}
        if state.global_step and not isinstance(train_dataloader.dataset, IterableDataset):
            skip_passes(train_dataloader, state.global_step, args.gradient_accumulation_steps)
        elif state.global_step and state.epoch > 1 and state.is_world_process_zero:
            logger.warning(
                "A streaming training set can be taken up within its first pass alone: the checkpoint lies later. The "
                "run begins the second pass, so that it will differ from an uninterrupted one. Load the set without "
                "streaming to go on exactly."
            )


def skip_passes(dataloader: Any, steps: int, accumulation: int) -> None:
    """Go to the pass over the data in which a resumed run goes on; transformers skips batches inside that pass.

    TRL's sampler draws the order of every pass from one generator, which begins anew in a resumed run, so the orders
    of the earlier passes are drawn here and dropped. A sampler with `set_epoch` is told the pass; transformers tells
    it on one process alone, where it also skips batches.

    Args:
        dataloader: As accelerate has prepared it.
        steps: Optimizer steps that the run has done.
        accumulation: Micro-batches of an optimizer step. The last step of a pass may have fewer.
    """
    passes = steps // max(math.ceil(len(dataloader) / accumulation), 1)
    sampler = dataloader
    while (inner := getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)) is not None:
        sampler = inner  # of a process's share of the batches, or of batches
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(passes)
        return
    for _ in range(passes):
        deque(sampler, maxlen=0)


# Settings beyond transformers' that may change inside a generation cycle: logging, speed, loading, where vLLM runs.
_NOT_IN_ROLLOUTS = {
    "gradient_checkpointing_mode",
    "length_aware_scoring",
    "length_aware_training",
    "log_completions",
    "log_completions_hub_repo",
    "log_miner_update_steps",
    "log_multimodal",
    "log_token_credit",
    "log_token_credit_rollouts",
    "log_token_credit_steps",
    "log_unique_prompts",
    "max_tokens_per_micro_batch",
    "model_init_kwargs",
    "num_completions_to_print",
    "num_generations_eval",
    "optimizer_batch_size",  # it sets gradient_accumulation_steps
    "prompt_selection_new_ledger",
    "skip_zero_advantages",
    "vllm_enable_sleep_mode",
    "vllm_gpu_memory_utilization",
    "vllm_group_port",
    "vllm_server_base_url",
    "vllm_server_host",
    "vllm_server_port",
    "vllm_server_timeout",
    "vllm_tensor_parallel_size",
    "watchdog_seconds",
}


def settings_of_rollouts(args: Any) -> dict[str, str]:
    """Return, as JSON, the settings that a generation cycle depends on: its rollouts, and what the loss reads of them.

    A setting that is not known to be harmless counts: to generate again costs one generation.
    """
    names = {field.name for field in fields(args)} - {field.name for field in fields(TrainingArguments)}
    names = names - _NOT_IN_ROLLOUTS | {"per_device_train_batch_size", "gradient_accumulation_steps"}
    settings = redact({name: getattr(args, name) for name in sorted(names)})
    return {name: json.dumps(value, sort_keys=True, default=str) for name, value in settings.items()}


class NothingLeft(Exception):  # noqa: N818
    """Ends a training whose checkpoint has done all steps, before transformers makes one more."""


class Checkpointing(TrainerCallback):
    """Writes the checkpoints of a trainer, takes up its rollouts where they left off, and watches its run folder."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        # Before all others: a training without a step left opens no tracker and starts no watchdog.
        trainer.callback_handler.callbacks.insert(0, self)
        self.is_saving = False  # whether a checkpoint is being written, in its unfinished folder
        self._resumed_from: Path | None = None  # until its rollouts are taken up

    def resume(self, wanted: str | bool | None) -> str | None:
        """Return the checkpoint to resume from, the same on every process. Every process must call it.

        It looks for it once: the path that it has returned may be passed in again.
        """
        trainer = self._trainer
        if self._resumed_from is not None and wanted == str(self._resumed_from):
            return str(wanted)
        if trainer.accelerator.is_local_main_process:
            checkpoints.recover(trainer.args.output_dir)
        trainer.accelerator.wait_for_everyone()
        only_model = trainer.args.save_only_model
        checkpoint = checkpoints.agree_on(wanted, trainer.args.output_dir, only_model=only_model)
        self._resumed_from = None if checkpoint is None else Path(checkpoint)
        return checkpoint

    @property
    def resumed_from(self) -> Path | None:
        """The checkpoint of a training that is about to go on; None once its rollouts are taken up."""
        return self._resumed_from

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the training if the checkpoint, which is loaded by now, has done all steps: see `end_at_once`."""
        if self._resumed_from is not None and state.global_step >= state.max_steps:
            raise NothingLeft

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check, before anything is written, that the run folder is still there and nobody else's."""
        check_run(args.output_dir)

    def end_at_once(self) -> TrainOutput:
        """End a training without a step left as transformers does, and return what it returns."""
        trainer, state, folder = self._trainer, self._trainer.state, self._resumed_from
        self._resumed_from = None
        assert folder is not None
        trainer.accelerator.print(
            f"No step is left: {folder.name} has done {state.global_step} of {state.max_steps}. Raise max_steps or "
            f"num_train_epochs to train on."
        )
        if trainer.args.load_best_model_at_end and state.best_model_checkpoint is not None:
            trainer._load_best_model()
        trainer.is_in_train = False
        return TrainOutput(state.global_step, 0.0, {})

    def restore_rollouts(self) -> None:
        """Take up the rollouts of the checkpoint, once, before the first training batch. Every process must call."""
        if self._resumed_from is None:
            return
        trainer, folder = self._trainer, self._resumed_from
        self._resumed_from = None
        place = trainer.accelerator.process_index, trainer.accelerator.num_processes
        settings = settings_of_rollouts(trainer.args)
        rollouts = checkpoints.load_rollouts(folder, *place, trainer.accelerator.device, settings)
        if rollouts is not None:
            trainer._step, trainer._buffered_inputs = rollouts["micro_step"], rollouts["batches"]
            RunState.of(trainer).stream, RunState.of(trainer).ledger = rollouts["stream"], rollouts["ledger"]

    def save(self, folder: Path, write: Callable[[], None]) -> Path:
        """Write a checkpoint in an unfinished folder, then move it to its place. Every process must call it."""
        trainer, name = self._trainer, f"{checkpoints.PREFIX}{self._trainer.state.global_step}"
        unfinished = folder / checkpoints.UNFINISHED / name
        is_local_main = trainer.accelerator.is_local_main_process
        try:
            if is_local_main:
                checkpoints.begin(folder)
            trainer.accelerator.wait_for_everyone()
            self.is_saving = True
            write()
            self._save_rollouts(unfinished)
            if trainer.state.best_global_step and trainer.args.should_save:
                self._name_best(folder, unfinished)
            self._finish(folder, unfinished)
        except Exception as error:
            if is_local_main:
                checkpoints.discard(folder)
            last = checkpoints.newest(folder)
            raise RuntimeError(
                f"{name} could not be written in {folder}: {error}. The run can go on from "
                f"{last.name if last else 'the start: there is no other checkpoint'}."
            ) from error
        finally:
            self.is_saving = False
        if trainer.is_world_process_zero():
            rotate_checkpoints(
                output_dir=str(folder),
                save_total_limit=trainer.args.save_total_limit,
                best_model_checkpoint=trainer.state.best_model_checkpoint,
                use_mtime=True,
            )
        trainer.accelerator.wait_for_everyone()
        return folder / name

    def _save_rollouts(self, unfinished: Path) -> None:
        """Save the rollouts of a generation cycle that the checkpoint lies in the middle of."""
        trainer = self._trainer
        is_inside = trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations) != 0
        if is_inside and trainer._buffered_inputs is not None:
            place = trainer.accelerator.process_index, trainer.accelerator.num_processes
            checkpoints.save_rollouts(
                unfinished,
                *place,
                trainer._buffered_inputs,
                settings=settings_of_rollouts(trainer.args),
                micro_step=trainer._step,
                stream=trainer.prompt_stream_state(),
                ledger=trainer.ledger_position(),
            )

    def _name_best(self, folder: Path, unfinished: Path) -> None:
        """Correct the best checkpoint's place: transformers looked for it where this one is being written."""
        state = self._trainer.state
        best = folder / f"{checkpoints.PREFIX}{state.best_global_step}"
        if best.name == unfinished.name or best.exists():
            state.best_model_checkpoint = str(best)
            state.save_to_json(str(unfinished / STATE))

    def _finish(self, folder: Path, unfinished: Path) -> None:
        accelerator = self._trainer.accelerator
        accelerator.wait_for_everyone()
        if self._trainer.is_world_process_zero():
            checkpoints.finish(folder, unfinished.name, accelerator.num_processes)
        accelerator.wait_for_everyone()
        # A node with a disk of its own still has its part of the checkpoint.
        if accelerator.is_local_main_process and unfinished.exists():
            checkpoints.finish(folder, unfinished.name, accelerator.num_processes)
