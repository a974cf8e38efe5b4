"""End a training whose vLLM server or one of whose processes is gone, or that hangs, and say what
hung.

If a vLLM server stops answering or a process is stopped, a distributed run waits as long as its
collectives allow: half an hour for most, forever for some. The watchdog looks for signs of life
instead. Each process counts the progress of its main thread (`heartbeat.beat`), and a thread of its
own tells the others, through the store by which the processes have found each other, torch's
`TCPStore` at MASTER_ADDR:MASTER_PORT. As long as one process makes progress, the run is alive,
however long the step takes.
"""

import contextlib
import faulthandler
import json
import logging
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any, NoReturn

from transformers import TrainerCallback

from ..common import heartbeat
from .server import ANSWER_SECONDS, GONE_SECONDS, ask, served_at

logger = logging.getLogger(__name__)

EXIT_CODE = 75  # EX_TEMPFAIL in sysexits.h: trying again may help
CONNECT_SECONDS = 60.0
SERVER, PROGRESS = "server", "progress"  # sources of signs of life, beside the ranks


class TrainingWatchdog(TrainerCallback):
    """Ends this process with exit code 75 when the vLLM server or a process of the run has been
    gone for some time.

    It watches from the first step to the last. `trl-miner train` has one. In Python, train inside
    its block:

    ```python
    with TrainingWatchdog(trainer, seconds=600):
        trainer.train()
    ```
    """

    def __init__(self, trainer: Any, seconds: float | None = None) -> None:
        """Join a trainer.

        Args:
            trainer: A trainer of TRL: its settings, its place in the run, and its server.
            seconds: Without a sign of life until the training ends, also where everything answers
                and nothing makes progress. None: 300, and a training in which all answer goes on,
                with a warning.
        """
        self._trainer = trainer
        self._limit, self._ends_idle = seconds or GONE_SECONDS, seconds is not None
        self._interval = min(5.0, self._limit / 8)  # seconds between two looks
        # seconds for one answer of the server
        self._patience = min(ANSWER_SECONDS, max(1.0, self._limit / 4))
        # on the process that talks to it
        self._url = served_at(trainer.args) if trainer.accelerator.is_main_process else None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._hook: Any = None
        self._has_warned = False
        trainer.add_callback(self)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any = None, **kwargs: Any
    ) -> None:
        """Start watching. Not earlier: loading a model or a checkpoint may take its time.

        Each forward of the model is a sign of life.
        """
        if model is not None:
            embeddings = model.get_input_embeddings()
            self._hook = embeddings.register_forward_pre_hook(lambda *_: heartbeat.beat())
        accelerator = self._trainer.accelerator
        self._rank, self._size = accelerator.process_index, accelerator.num_processes
        # by rank: time of its last look, its beats, its place in the run
        self._states: dict[int, Any] = {}
        # by source: its last value, and when that was new
        self._seen: dict[Any, tuple[Any, float]] = {}
        self._stop = threading.Event()
        if self._size > 1:
            # In a thread of its own: asking a store whose process is stopped may never return.
            talk = threading.Thread(
                target=self._talk, args=(_connect(), self._stop), name=__name__, daemon=True
            )
            talk.start()
        self._thread = threading.Thread(
            target=self._watch, args=(self._stop,), name=__name__, daemon=True
        )
        self._thread.start()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stop()

    def __enter__(self) -> "TrainingWatchdog":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._hook is not None:
            self._hook.remove()
        if self._thread is not None:
            self._thread.join(timeout=5 * self._patience)

    def _talk(self, store: Any, stop: threading.Event) -> None:
        """Tell this process's state and hear the others', until the end or that of the store's
        process."""
        keys = {rank: f"trl_miner/watchdog/{rank}" for rank in range(self._size)}
        with contextlib.suppress(RuntimeError):  # of a store that is gone
            while not stop.wait(self._interval / 2):
                if self._rank in self._states:
                    store.set(keys[self._rank], json.dumps(self._states[self._rank]))
                for rank, key in keys.items():
                    if rank != self._rank and store.check([key]):
                        self._states[rank] = json.loads(store.get(key))

    def _watch(self, stop: threading.Event) -> None:
        asleep = time.monotonic()
        while not stop.wait(self._interval):
            now = time.monotonic()
            # Ctrl-Z or a suspended machine: if this process was stopped, the others may have been
            # stopped too.
            stopped = now - asleep - self._interval
            self._seen = {
                source: (value, seen + stopped) for source, (value, seen) in self._seen.items()
            }
            self._look(now)
            if (reason := self._reason_to_end(now)) and not stop.is_set():
                self._end(reason)
            self._warn_if_idle(now)
            asleep = time.monotonic()

    def _look(self, now: float) -> None:
        """Note the signs of life since the last look."""
        place = f"in phase '{heartbeat.phases[-1]}'" if heartbeat.phases else "between two phases"
        place = f"{place}, {heartbeat.place(self._trainer.state.global_step)}"
        if self._url is not None:
            self._note(
                SERVER, now if ask(self._url, "health", self._patience) is not None else None, now
            )
        if heartbeat.CHECKPOINT in heartbeat.phases:  # which may take long, and beats nowhere
            heartbeat.beat()
        self._states[self._rank] = [now, heartbeat.beats, place]
        states = dict(self._states)
        for rank in range(self._size):
            self._note(rank, states.get(rank), now)
        self._note(PROGRESS, [beats for _, beats, _ in states.values()], now)

    def _note(self, source: Any, value: Any, now: float) -> None:
        """Note a value of a source: one that has changed is a sign of life, None is no value."""
        before, _ = self._seen.setdefault(source, (None, now))
        if value is not None and value != before:
            self._seen[source] = value, now

    def _silence(self, source: Any, now: float) -> float:
        """Return for how many seconds a source has given no sign of life; 0 for one that was never
        looked for."""
        return now - self._seen.get(source, (None, now))[1]

    def _reason_to_end(self, now: float) -> str | None:
        """Return what gives no sign of life, and where all processes are; None if the run may go
        on."""
        sources = [*range(self._size), SERVER, *([PROGRESS] if self._ends_idle else [])]
        if max(self._silence(source, now) for source in sources) < self._limit:
            return None
        # whoever waits for what is gone stopped a little after it, so half of the limit is enough
        gone = [rank for rank in range(self._size) if self._silence(rank, now) >= self._limit / 2]
        what = "No process makes progress"
        if gone:
            what = f"Process {gone[0]} does not answer, because it was stopped or is dead"
        elif self._silence(SERVER, now) >= self._limit / 2:
            what = f"The vLLM server at {self._url} does not answer"
        states = sorted(dict(self._states).items())
        places = [
            f"process {rank} {'was' if rank in gone else 'is'} {state[2]}" for rank, state in states
        ]
        return f"{what}: {'; '.join(places)}."

    def _warn_if_idle(self, now: float) -> None:
        """Say once where all answer and nothing makes progress, of which nobody has said that it
        ends the run."""
        is_idle = self._silence(PROGRESS, now) >= self._limit
        if is_idle and not self._has_warned and self._rank == 0:
            logger.warning(
                f"No process has made progress for {self._limit:g} s: process 0 is"
                f" {self._states[0][2]}. The run goes on. If a step or a reward function takes that"
                " long, all is well; watchdog_seconds ends such a run."
            )
        self._has_warned = is_idle

    def _end(self, reason: str) -> NoReturn:
        print(
            f"\ntrl_miner: {reason} The run ends after {self._limit:g} s without a sign of life"
            " (watchdog_seconds). To continue from the last checkpoint, add"
            f" --resume_from_checkpoint latest.\nProcess {self._rank} is here:",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(sys.stderr)
        if self._size > 1:
            # the others, which its end would end, say the same of themselves
            time.sleep(self._interval)
        sys.stdout.flush()
        os._exit(EXIT_CODE)


def _connect() -> Any:
    from torch.distributed import TCPStore

    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    try:
        timeout = timedelta(seconds=CONNECT_SECONDS)
        return TCPStore(address, int(port), timeout=timeout, wait_for_workers=False)
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"The watchdog needs the store at MASTER_ADDR:MASTER_PORT: got {address}:{port} "
            f"({str(error).splitlines()[0]}). Set watchdog_seconds: 0 to train without a watchdog."
        ) from error
