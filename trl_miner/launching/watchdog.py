"""End a run that hangs, and say what hung: the server, one process, or all of them.

If a vLLM server stops answering or a process is stopped, a distributed run waits as long as its collectives allow:
half an hour for most, forever for some. The watchdog looks for signs of life instead. Each process counts the progress
of its main thread (`heartbeat.beat`), and a thread of its own tells the others. As long as one process makes progress,
the run is alive, however long the step takes.
"""

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from .. import heartbeat
from .peers import Peers
from .server import ANSWER_SECONDS, ask

logger = logging.getLogger(__name__)

EXIT_CODE = 75  # EX_TEMPFAIL in sysexits.h: trying again may help
DEFAULT_SECONDS = 300.0  # for a server or process that is gone, where no time was asked for
TOKEN_COUNTERS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")  # of vLLM's metrics
SERVER, PROGRESS = "server", "progress"  # sources of signs of life, beside the ranks


class SignsOfLife:
    """When each source was last seen alive: when a value of it changed."""

    def __init__(self) -> None:
        self._times: dict[Any, float] = {}
        self._values: dict[Any, Any] = {}

    def note(self, source: Any, value: Any, now: float) -> bool:
        """Note a value, and return whether it is a sign of life: it has changed. None is no value.

        Time begins to run with the first call, whatever it noted.
        """
        is_alive = value is not None and value != self._values.get(source)
        if is_alive or source not in self._times:
            self._times[source] = now
        if is_alive:
            self._values[source] = value
        return is_alive

    def silence(self, source: Any, now: float) -> float:
        """Return for how many seconds a source has given no sign of life; 0 for one that was never looked for."""
        return now - self._times.get(source, now)

    def forgive(self, seconds: float) -> None:
        """Leave out time in which nothing could be observed."""
        if seconds > 0:
            self._times = {source: seen + seconds for source, seen in self._times.items()}


class Watchdog:
    """Watches this process, the others of the run, and the vLLM server.

    Args:
        limit: Seconds without a sign of life before the run is ended.
        ends_idle: Whether a run ends in which everything answers, but nothing makes progress; else a warning says so.
        server_url: The vLLM server's address, in the process that talks to it; None elsewhere.
        where: Returns the place in the run, such as "step 12".
    """

    def __init__(
        self, limit: float, *, ends_idle: bool = True, server_url: str | None = None, where: Callable[[], str] = str
    ) -> None:
        self.limit, self.ends_idle, self.server_url, self.where = limit, ends_idle, server_url, where
        self._interval = min(5.0, limit / 8)  # seconds between two looks
        self._patience = min(ANSWER_SECONDS, max(1.0, limit / 4))  # seconds for one answer of the server
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._peers: Peers | None = None

    def start(self, rank: int = 0, size: int = 1) -> None:
        """Start watching, on every process."""
        self._rank, self._size = rank, size
        self._peers = Peers(rank, size, self._interval) if size > 1 else None
        self._main = threading.get_ident()
        self._signs, self._has_warned, self._is_answered = SignsOfLife(), False, True
        self._states: dict[int, Any] = {}
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, name=__name__, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5 * self._patience)
        if self._peers is not None:
            self._peers.close()

    # The methods below run in the watchdog's thread.

    def _watch(self) -> None:
        woke = time.monotonic()
        while not self._stop.wait(self._interval):
            now = time.monotonic()
            # Ctrl-Z or a suspended machine: if this process was stopped, the others may have been stopped too.
            self._signs.forgive(now - woke - self._interval - 4 * self._patience)
            woke = now
            self._look(now)
            reason = self._reason_to_end(now)
            if reason is not None and not self._stop.is_set():
                self._end(reason)

    def _look(self, now: float) -> None:
        """Note the signs of life since the last look."""
        if self.server_url is not None:
            self._is_answered = ask(self.server_url, "health", self._patience) is not None
            self._signs.note(SERVER, now if self._is_answered else None, now)
            tokens = _tokens(self.server_url, self._patience) if self._is_answered else None
            if self._signs.note("tokens", tokens, now):
                heartbeat.beat()
        if heartbeat.CHECKPOINT in heartbeat.phases:  # which may take long, and beats nowhere
            heartbeat.beat()
        self._states[self._rank] = [now, heartbeat.beats, self._place()]
        if self._peers is not None:
            self._peers.mine = self._states[self._rank]
            self._states |= self._peers.states
        for rank in range(self._size):
            self._signs.note(rank, self._states.get(rank), now)
        self._signs.note(PROGRESS, [state[1] for state in self._states.values()], now)

    def _place(self) -> str:
        phase = f"in phase '{heartbeat.phases[-1]}'" if heartbeat.phases else "between two phases"
        place = f"{phase}, {self.where()}"
        if not self._is_answered:  # the other processes, which do not ask the server, say it too
            return f"{place}, without an answer of the vLLM server"
        return f"{place}, waiting for another process" if _is_in_collective(self._main) else place

    def _reason_to_end(self, now: float) -> str | None:
        """Return why the run must end, or None. Where it may go on although nothing makes progress, warn once."""
        gone = max(self._signs.silence(source, now) for source in (*range(self._size), SERVER))
        is_idle = self._signs.silence(PROGRESS, now) >= self.limit
        if gone >= self.limit or (is_idle and self.ends_idle):
            return self._describe(now)
        if is_idle and not self._has_warned and self._rank == 0:
            logger.warning(
                "%s It has been so for %g s, and the run goes on. If that is how long a step or a reward function "
                "takes, all is well. Set watchdog_seconds to end such a run.",
                self._describe(now),
                self.limit,
            )
        self._has_warned = is_idle
        return None

    def _describe(self, now: float) -> str:
        """Return what gives no sign of life, and where all processes are."""
        # whoever waits for what is gone stopped a little after it, so half of the limit is enough
        gone = [rank for rank in range(self._size) if self._signs.silence(rank, now) >= self.limit / 2]
        what = "No process makes progress"
        if gone:
            what = f"Process {gone[0]} does not answer, because it was stopped or is dead"
        elif self._signs.silence(SERVER, now) >= self.limit / 2:
            what = f"The vLLM server at {self.server_url} does not answer"
        elif self.server_url is not None:
            what += f", although the vLLM server at {self.server_url} answers"
        states = sorted(self._states.items())
        places = [f"process {rank} {'was' if rank in gone else 'is'} {state[2]}" for rank, state in states]
        return f"{what}: {'; '.join(places)}."

    def _end(self, reason: str) -> NoReturn:
        print(
            f"\ntrl_miner: {reason} The run ends after {self.limit:g} s without a sign of life (watchdog_seconds). To "
            f"continue from the last checkpoint, add --resume_from_checkpoint latest.\nProcess {self._rank} is here:",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(sys.stderr)
        if self._size > 1:
            time.sleep(self._interval)  # the others, which its end would end, say the same of themselves
        sys.stdout.flush()
        os._exit(EXIT_CODE)


def _tokens(url: str, patience: float) -> list[str] | None:
    """Return the counters of the tokens that a vLLM server has processed; None if it does not count them."""
    lines = (ask(url, "metrics", patience) or "").splitlines()
    return [line for line in lines if line.startswith(TOKEN_COUNTERS)] or None


def _is_in_collective(thread: int) -> bool:
    """Return whether a thread is in a collective of torch, as far as its Python frames show it."""
    frame = sys._current_frames().get(thread)
    while frame is not None and not frame.f_code.co_filename.endswith("distributed_c10d.py"):
        frame = frame.f_back
    return frame is not None
