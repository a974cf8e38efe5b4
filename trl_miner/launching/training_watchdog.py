"""The watchdog of a trainer: it watches from the first step to the last."""

from typing import Any

from transformers import TrainerCallback

from .. import heartbeat
from .watchdog import DEFAULT_SECONDS, Watchdog


class TrainingWatchdog(Watchdog, TrainerCallback):
    """Ends this process with exit code 75 when the vLLM server or a process of the run has been gone for some time.

    `trl-miner train` has one. In Python, train inside its block:

    ```python
    with TrainingWatchdog(trainer, seconds=600):
        trainer.train()
    ```
    """

    def __init__(self, trainer: Any, seconds: float | None = None) -> None:
        """Join a trainer.

        Args:
            trainer: A trainer of TRL: its settings, its place in the run, and its server.
            seconds: Without a sign of life until the training ends, also where everything answers and nothing makes
                progress. None: 300, and a training in which all answer goes on, with a warning.
        """
        super().__init__(
            seconds or DEFAULT_SECONDS,
            ends_idle=seconds is not None,
            server_url=_server_url(trainer),
            where=lambda: heartbeat.place(trainer.state.global_step),
        )
        self._accelerator = trainer.accelerator
        trainer.add_callback(self)
        engine = getattr(getattr(getattr(trainer, "vllm_generation", None), "llm", None), "llm_engine", None)
        if engine is not None:  # vLLM in this process: each of its steps is a sign of life
            engine.step = _with_beat(engine.step)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Not earlier: loading a model or a checkpoint may take its time.
        self.start(self._accelerator.process_index, self._accelerator.num_processes)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stop()

    def __enter__(self) -> "TrainingWatchdog":
        return self

    def __exit__(self, *_: Any) -> None:
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
        heartbeat.beat()
        return step(*args, **kwargs)

    return beating
