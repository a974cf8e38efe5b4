"""Going on after a stop, and stopping when nothing gets on: resuming, whole checkpoints, pushes, the watchdog."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import rotate_checkpoints
from trl import GRPOTrainer

from ..hub.training import open_repo, push_checkpoint, push_trained
from ..launching.health import is_port_free
from ..launching.watchdog import RunStopped, Watchdog
from ..runs import checkpoints
from .dynamic_sampling import PromptStream
from .run_state import RunState

_STEP = "training step"


class LastingTrainer(GRPOTrainer):
    """TRL's trainer, whose run survives what happens to it."""

    def __init__(self, model: Any, reward_funcs: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        _check_group_port(args)
        super().__init__(model, reward_funcs, args, *rest, **kwargs)
        self._stream: PromptStream | None = None  # of dynamic sampling
        self._is_saving = False
        self._resumed_from: Path | None = None  # until the rollouts in it are taken up
        self.add_callback(RunState())
        self._watchdog = self._make_watchdog()

    @property
    def _run_state(self) -> RunState:
        """Looked up each time: transformers may put another in its place when it resumes."""
        return next(c for c in self.callback_handler.callbacks if isinstance(c, RunState))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; `resume_from_checkpoint` may also be "latest": the newest whole checkpoint, or none.

        Raises:
            RunStopped: Nothing has moved for `watchdog_seconds`. (With several processes they end at once, with exit
                code 75, since a collective cannot be left by an exception.)
        """
        if self.accelerator.is_local_main_process:
            checkpoints.recover(self.args.output_dir)
        self.accelerator.wait_for_everyone()
        checkpoint = checkpoints.agree_on(resume_from_checkpoint, self.args.output_dir)
        self._resumed_from = None if checkpoint is None else Path(checkpoint)
        try:
            return super().train(checkpoint, *args, **kwargs)
        except KeyboardInterrupt:
            if self._watchdog.message is None:
                raise
            raise RunStopped(self._watchdog.message) from None
        finally:
            self._watchdog.stop()

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        with self._watchdog.phase(_STEP):
            return super().training_step(*args, **kwargs)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if self._resumed_from is not None and self.model.training:
            folder, self._resumed_from = self._resumed_from, None
            place = self.accelerator.process_index, self.accelerator.num_processes
            found = checkpoints.load_rollouts(folder, *place, self.accelerator.device)
            if found is not None:
                self._step, self._buffered_inputs = found["micro_step"], found["batches"]
                self._run_state.stream = found["stream"]
        return super()._prepare_inputs(generation_batch)

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder, checkpoints.UNFINISHED)) if self._is_saving else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """TRL's checkpoint, and the rollouts that it lies in the middle of, whole or not there at all."""
        output, name = Path(self._get_output_dir(trial)), f"checkpoint-{self.state.global_step}"
        is_local_main = self.accelerator.is_local_main_process
        with self._watchdog.phase("checkpoint", growing=output / checkpoints.UNFINISHED):
            try:
                if is_local_main:
                    checkpoints.begin(output)
                self.accelerator.wait_for_everyone()
                self._is_saving = True
                super()._save_checkpoint(model, trial)
                self._save_rollouts(output / checkpoints.UNFINISHED / name)
                if self.state.best_global_step and self.args.should_save:
                    self._name_best_checkpoint(output, name)
            except Exception as error:
                if is_local_main:
                    checkpoints.discard(output)
                last = checkpoints.newest(output)
                raise RuntimeError(
                    f"{name} could not be written in {output}: {error}. The run can go on from "
                    f"{last.name if last else 'the start: there is no other checkpoint'}."
                ) from error
            finally:
                self._is_saving = False
            self._finish_checkpoint(output, name)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(output / name))

    def _finish_checkpoint(self, output: Path, name: str) -> None:
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            checkpoints.finish(output, name)
            rotate_checkpoints(
                output_dir=str(output),
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )
        self.accelerator.wait_for_everyone()
        # A node with a disk of its own still has its part of it.
        if self.accelerator.is_local_main_process and (output / checkpoints.UNFINISHED / name).exists():
            checkpoints.finish(output, name)
        self.accelerator.wait_for_everyone()

    def _name_best_checkpoint(self, output: Path, name: str) -> None:
        """transformers looked for it where the checkpoint is being written."""
        best = output / f"checkpoint-{self.state.best_global_step}"
        if best.name == name or best.exists():
            self.state.best_model_checkpoint = str(best)
            self.state.save_to_json(str(output / checkpoints.UNFINISHED / name / "trainer_state.json"))

    def _save_rollouts(self, folder: Path) -> None:
        if self._step % (self.args.steps_per_generation * self.num_iterations) and self._buffered_inputs is not None:
            place = self.accelerator.process_index, self.accelerator.num_processes
            stream = None if self._stream is None else self._stream.state()
            checkpoints.save_rollouts(folder, *place, self._buffered_inputs, micro_step=self._step, stream=stream)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        open_repo(self, partial(super().init_hf_repo, token, private))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self._is_saving:  # once the checkpoint is in its place
            push_checkpoint(self, checkpoint_folder)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> bool:
        """Push the model, and say whether it arrived: see `trl_miner.hub.training.push_trained`."""
        return push_trained(self, *args, **kwargs)

    def _make_watchdog(self) -> Watchdog:
        args, url = self.args, None
        if args.use_vllm and args.vllm_mode == "server" and self.accelerator.is_main_process:
            url = args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
        watchdog = Watchdog(args.watchdog_seconds, server_url=url and url.rstrip("/"), where=self._place_in_run)
        if args.watchdog_seconds > 0:
            self.add_callback(_StartWatchdog(self, watchdog))
        engine = getattr(getattr(getattr(self, "vllm_generation", None), "llm", None), "llm_engine", None)
        if engine is not None:  # colocated: each of its steps is a sign of life
            engine.step = _with_beat(engine.step, watchdog)
        return watchdog

    def _place_in_run(self) -> str:
        step = self.state.global_step
        return f"step {step + 1}" if self._watchdog.is_in(_STEP) else f"after step {step}"

    @contextmanager
    def watching(self, part: str) -> Iterator[None]:
        """Name what happens meanwhile to the watchdog, each forward of the model being a sign of life."""
        embeddings = self.accelerator.unwrap_model(self.model).get_input_embeddings()
        hook = embeddings.register_forward_pre_hook(lambda *_: self._watchdog.beat())
        try:
            with self._watchdog.phase(part):
                yield
        finally:
            hook.remove()


class _StartWatchdog(TrainerCallback):
    """Begins when the training does: loading a model or a checkpoint may take its time."""

    def __init__(self, trainer: LastingTrainer, watchdog: Watchdog) -> None:
        self.trainer, self.watchdog = trainer, watchdog

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        accelerator = self.trainer.accelerator
        self.watchdog.start(accelerator.process_index, accelerator.num_processes, _from_main_process)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.watchdog.stop()


def _from_main_process(value: int) -> int:
    values = [value]
    broadcast_object_list(values)
    return values[0]


def _with_beat(step: Callable[..., Any], watchdog: Watchdog) -> Callable[..., Any]:
    def beating(*args: Any, **kwargs: Any) -> Any:
        watchdog.beat()
        return step(*args, **kwargs)

    return beating


def _check_group_port(args: Any) -> None:
    """Where the port is taken, TRL waits for the server, and the server for the trainer, which never listens."""
    is_first = os.environ.get("RANK", "0") == "0"
    if args.use_vllm and args.vllm_mode == "server" and is_first and not is_port_free(args.vllm_group_port):
        raise ValueError(
            f"vllm_group_port must be free on the machine that trains: got {args.vllm_group_port}, which is in use. "
            f"Choose another, best below 32768, where no outgoing connection takes it."
        )
