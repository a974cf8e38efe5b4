"""The watchdog as a callback of a trainer: it watches from the first step to the last."""

from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback

from ..heartbeat import beat
from .watchdog import DEFAULT_SECONDS, Watchdog

TRAINING_STEP = "training step"


class TrainingWatchdog(Watchdog, TrainerCallback):
    """Ends a training whose vLLM server or one of whose processes is gone for `watchdog_seconds`.

    Where that is given, it also ends a training in which nothing moves for so long; else a warning says so, and no
    reward function, however slow, ends the training. `trl-miner train` adds it, and in Python `watchdog_seconds` does.
    """

    def __init__(self, trainer: Any) -> None:
        """Join a trainer, whose phases it follows.

        Args:
            trainer: A `MinerGRPOTrainer`: its settings, place in the run, model and server.
        """
        seconds = trainer.args.watchdog_seconds
        super().__init__(seconds or DEFAULT_SECONDS, server_url=_server_url(trainer), where=trainer.watchdog.where)
        self.ends_idle = seconds is not None
        self._place = trainer.accelerator.process_index, trainer.accelerator.num_processes
        trainer.watchdog = self
        trainer.add_callback(self)
        engine = getattr(getattr(getattr(trainer, "vllm_generation", None), "llm", None), "llm_engine", None)
        if engine is not None:  # vLLM in this process: each of its steps is a sign of life
            engine.step = _with_beat(engine.step)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Not earlier: loading a model or a checkpoint may take its time.
        self.start(*self._place, lambda value: list(gather_object([value])))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stop()


def _server_url(trainer: Any) -> str | None:
    """Return the address of the vLLM server on the process that talks to it."""
    args = trainer.args
    if not (args.use_vllm and args.vllm_mode == "server" and trainer.accelerator.is_main_process):
        return None
    url = args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
    return str(url).rstrip("/")


def _with_beat(step: Any) -> Any:
    def beating(*args: Any, **kwargs: Any) -> Any:
        beat()
        return step(*args, **kwargs)

    return beating
