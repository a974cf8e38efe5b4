"""End a run that hangs, and say what hung: the server, one process, or all of them.

If a vLLM server stops answering or a process is stopped, a distributed run waits as long as its collectives allow:
half an hour for most, forever for some. The watchdog looks for signs of life instead. Each process notes when its
main thread makes progress (`heartbeat.beat`), and a thread of its own tells the others. As long as one process makes
progress, the run is alive, however long the step takes.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from .. import heartbeat
from ..heartbeat import GENERATION
from .liveness import SERVER, SignsOfLife
from .peers import Peers, Unreachable
from .server import ask

logger = logging.getLogger(__name__)

EXIT_CODE = 75  # EX_TEMPFAIL in sysexits.h: trying again may help
DEFAULT_SECONDS = 300.0  # for a server or process that is gone, where no time was asked for
GRACE_SECONDS = 20.0  # for the main thread to end by an exception, before the process is ended


class RunStopped(RuntimeError):
    """The watchdog ended the run. The message says what hung, in which phase and step."""


class Watchdog:
    """Watches this process, the others of the run, and the vLLM server.

    Args:
        limit: Seconds without a sign of life before the run is ended.
        server_url: The vLLM server's address, in the process that talks to it; None elsewhere.
        where: Returns the place in the run, such as "step 12".

    Attributes:
        message: Why the run was ended; None while it runs.
        ends_idle: Whether a run ends in which everything answers, but nothing makes progress; else a warning says so.
    """

    def __init__(self, limit: float, *, server_url: str | None = None, where: Callable[[], str] = str) -> None:
        self.limit, self.server_url, self.where = limit, server_url, where
        self.ends_idle = True
        self.message: str | None = None
        self._beats = 0
        self._peers: Peers | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def _interval(self) -> float:
        """Seconds between two looks."""
        return min(5.0, self.limit / 8)

    @property
    def _patience(self) -> float:
        """Seconds for one answer of the server."""
        return min(5.0, max(1.0, self.limit / 4))

    def beat(self) -> None:
        """Note that this process makes progress."""
        self._beats += 1

    def start(self, rank: int = 0, size: int = 1, share: Callable[[Any], list[Any]] = lambda mine: [mine]) -> None:
        """Start watching, on every process. `share` returns what the processes pass to it, by rank."""
        if size > 1:
            try:
                self._peers = Peers(rank, size, share, self._interval)
            except Unreachable as error:
                if rank == 0:
                    logger.warning("The watchdog is off, and a run that hangs will not be ended: %s.", error)
                return
        self._stop.clear()
        self.message = None
        self._main = threading.get_ident()
        heartbeat.listeners.add(self.beat)
        self._thread = threading.Thread(target=self._watch, name="trl_miner.launching.watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()
        heartbeat.listeners.discard(self.beat)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5 * self._patience)
        if self._peers is not None:
            self._peers.close()
        self._thread, self._peers = None, None

    # The methods below run in the watchdog's thread.

    def _watch(self) -> None:
        signs = SignsOfLife(self.limit)
        woke, has_warned = time.monotonic(), False
        while not self._stop.wait(self._interval):
            now = time.monotonic()
            # Ctrl-Z or a suspended machine: if this process was stopped, the others may have been stopped too.
            signs.forgive(now - woke - self._interval - 4 * self._patience)
            woke = now
            self._look_at_folder(signs)
            self._look_at_server(signs, now)
            self._look_at_processes(signs, now)
            # The lowest rank that still can reports; the others wait a little, as they would say the same.
            late = 0.0 if self._peers is None else min(self._peers.rank, 4) * self._interval
            if not self.ends_idle:
                has_warned = self._warn_of_idleness(signs, now, has_warned)
            reason = signs.reason_to_end(now - late, self.server_url, ends_idle=self.ends_idle)
            if reason is not None and not self._stop.is_set():
                for state in signs.lost_processes(now):
                    _kill_sibling(state)
                self._end(reason)
                return

    def _warn_of_idleness(self, signs: SignsOfLife, now: float, has_warned: bool) -> bool:
        """Warn once of each time in which nothing makes progress, and return whether this one is warned of."""
        if not signs.is_idle(now):
            return False
        if not has_warned and (self._peers is None or self._peers.rank == 0):
            logger.warning(
                "%s It has been so for %g s, and the run goes on. If that is how long a step or a reward function "
                "takes, all is well. Set watchdog_seconds to end such a run.",
                signs.idleness(self.server_url),
                self.limit,
            )
        return True

    def _look_at_folder(self, signs: SignsOfLife) -> None:
        growing = heartbeat.phases[-1].growing if heartbeat.phases else None
        if growing is not None and signs.has_changed("folder", _size(growing)):
            self.beat()

    def _look_at_server(self, signs: SignsOfLife, now: float) -> None:
        if self.server_url is None:
            return
        answers, tokens = _ask_server(self.server_url, self._patience)
        signs.observe(SERVER, answers, now)
        # A server that does not count tokens (--disable-log-stats) cannot be told from a busy one, so trust it.
        is_trusted = answers and tokens is None and heartbeat.is_in(GENERATION)
        if is_trusted or (tokens is not None and signs.has_changed("tokens", tokens)):
            self.beat()

    def _look_at_processes(self, signs: SignsOfLife, now: float) -> None:
        mine = {"beats": self._beats, "phase": heartbeat.phases[-1].name if heartbeat.phases else "between two phases"}
        mine |= {"where": self.where(), "pid": os.getpid(), "host": socket.gethostname()}
        states = {0: mine} if self._peers is None else self._peers.exchange(mine)
        for rank in range(1 if self._peers is None else self._peers.size):
            signs.observe(("process", rank), rank in states, now)
            if rank in states:
                signs.states[rank] = states[rank]
                makes_progress = signs.has_changed(("beats", rank), states[rank]["beats"])
                signs.observe(("progress", rank), makes_progress, now)

    def _end(self, reason: str) -> None:
        self.message = f"{reason} The run ends after {self.limit:g} s without a sign of life (watchdog_seconds). "
        self.message += "To continue from the last checkpoint, add --resume_from_checkpoint latest."
        frame = sys._current_frames().get(self._main)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        print(f"\nWhere the main thread was:\n{stack}\ntrl_miner: {self.message}", file=sys.stderr, flush=True)
        if self._peers is None and self._main == threading.main_thread().ident:
            # Raise an exception if the main thread can still take one, so that a notebook survives.
            signal.pthread_kill(self._main, signal.SIGINT)
            if self._stop.wait(GRACE_SECONDS):
                return
        sys.stdout.flush()
        os._exit(EXIT_CODE)


def _ask_server(url: str, patience: float) -> tuple[bool, float | None]:
    """Return whether a vLLM server answers, and how many tokens it has processed so far, if it counts them."""
    if ask(url, "health", patience) is None:
        return False, None
    names = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
    lines = (ask(url, "metrics", patience) or "").splitlines()
    values = [line.rpartition(" ")[2] for line in lines if line.startswith(names)]
    try:
        return True, sum(map(float, values)) if values else None
    except ValueError:
        return True, None


def _kill_sibling(state: dict[str, Any]) -> None:
    """Kill a stopped process of the same launcher, which would wait 30 s for it to end by itself."""
    if state["host"] == socket.gethostname() and state["pid"] != os.getpid():
        with contextlib.suppress(psutil.Error):
            if (process := psutil.Process(state["pid"])).ppid() == os.getppid():
                process.kill()


def _size(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(path, name)).st_size
    return total
