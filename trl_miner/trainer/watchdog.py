"""The watchdog of a training run: what counts as a sign of life, and where the run is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback

from ..launching.watchdog import DEFAULT_SECONDS, RunStopped, Watchdog

TRAINING_STEP = "training step"


class TrainingWatchdog(Watchdog, TrainerCallback):
    """Ends a training in which nothing moves for `watchdog_seconds`. It starts when the training does.

    Off where that is None or 0, unless `watch_for_losses` turns it on.
    """

    def __init__(self, trainer: Any = None) -> None:
        self._trainer = trainer
        if trainer is None:
            super().__init__(0.0)
            return
        super().__init__(
            trainer.args.watchdog_seconds or 0.0, server_url=_server_url(trainer), where=self._place_in_run
        )
        if self.limit > 0:
            trainer.add_callback(self)
        engine = getattr(getattr(getattr(trainer, "vllm_generation", None), "llm", None), "llm_engine", None)
        if engine is not None:  # vLLM in this process: each of its steps is a sign of life
            engine.step = _with_beat(engine.step, self)

    def watch_for_losses(self) -> None:
        """Where `watchdog_seconds` says nothing, end a training whose server or process is gone, and no other."""
        if self._trainer.args.watchdog_seconds is None:
            self.limit, self.ends_idle = DEFAULT_SECONDS, False
            self._trainer.add_callback(self)

    @contextmanager
    def watching(self, name: str) -> Iterator[None]:
        """Name a phase of the run in which each forward of the model is a sign of life."""
        with self.phase(name):
            if self._trainer is None:
                yield
                return
            embeddings = self._trainer.accelerator.unwrap_model(self._trainer.model).get_input_embeddings()
            hook = embeddings.register_forward_pre_hook(lambda *_: self.beat())
            try:
                yield
            finally:
                hook.remove()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Raise `RunStopped` where the watchdog has interrupted the training, and stop watching in any case."""
        try:
            yield
        except KeyboardInterrupt:
            if self.message is None:
                raise
            raise RunStopped(self.message) from None
        finally:
            self.stop()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Not earlier: loading a model or a checkpoint may take its time.
        accelerator = self._trainer.accelerator
        self.start(accelerator.process_index, accelerator.num_processes, _of_all_processes)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stop()

    def _place_in_run(self) -> str:
        step = self._trainer.state.global_step
        return f"step {step + 1}" if self.is_in(TRAINING_STEP) else f"after step {step}"


def _server_url(trainer: Any) -> str | None:
    """Return the address of the vLLM server on the process that talks to it."""
    args = trainer.args
    if not (args.use_vllm and args.vllm_mode == "server" and trainer.accelerator.is_main_process):
        return None
    url = args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
    return str(url).rstrip("/")


def _of_all_processes(value: Any) -> list[Any]:
    return list(gather_object([value]))


def _with_beat(step: Callable[..., Any], watchdog: Watchdog) -> Callable[..., Any]:
    def beating(*args: Any, **kwargs: Any) -> Any:
        watchdog.beat()
        return step(*args, **kwargs)

    return beating
