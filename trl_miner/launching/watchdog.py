"""Ends a run that hangs, and says which part of it hung: a server, a process, or everything.

A vLLM server that stops answering, or a process that is stopped, leaves a distributed run waiting for as long as its
collectives allow, which is half an hour for most and for ever for some. What counts here is evidence of life: each
process notes when its main thread gets on (`heartbeat.beat`), and a thread of its own tells the others. As long as one
process gets on somewhere, the run is alive, however long the step.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from .. import heartbeat
from .health import ask, is_healthy

EXIT_CODE = 75  # sysexits' EX_TEMPFAIL: to try again may help
GRACE_SECONDS = 20.0  # for the main thread to end by an exception, before the process is ended
GENERATION = "generation"
_SERVER = ("server", 0)


class RunStopped(RuntimeError):
    """The watchdog ended the run; the message says which part of it had stopped."""


class Watchdog:
    """Watches this process, the others of the run, and the vLLM server.

    Args:
        limit: Seconds without a sign of life before the run is ended.
        server_url: Of the vLLM server; given by the process that talks to it, None elsewhere.
        where: What to say of the place in the run, such as "step 12".
    """

    def __init__(self, limit: float, *, server_url: str | None = None, where: Callable[[], str] = str) -> None:
        self.limit, self.server_url, self.where = limit, server_url, where
        self.message: str | None = None  # why the run was ended
        self._interval = min(5.0, limit / 8)
        self._patience = min(5.0, max(1.0, limit / 4))  # seconds for one question to the server or to the store
        self._parts: list[tuple[str, Path | None]] = []
        self._beats = 0
        self._peers: _Peers | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @contextlib.contextmanager
    def part(self, name: str, growing: Path | None = None) -> Iterator[None]:
        """What the main thread does is part `name`. An exception that leaves it gets a note of part and place.

        Args:
            name: For the reader of an error: "generation".
            growing: A folder that is written to: while its size changes, the part gets on.
        """
        self._parts.append((name, growing))
        self.beat()
        try:
            yield
        except Exception as error:
            note = f"This was in the part '{name}', {self.where()}."
            if not any(said.startswith("This was in the part") for said in getattr(error, "__notes__", ())):
                error.add_note(note)
            raise
        finally:
            self._parts.pop()
            self.beat()

    def is_in(self, name: str) -> bool:
        """Whether part `name` is under way, or one within it."""
        return any(part == name for part, _ in self._parts)

    def beat(self) -> None:
        """Say that this process gets on."""
        self._beats += 1

    def start(self, rank: int = 0, size: int = 1, agree_on_port: Callable[[int], int] = int) -> None:
        """Begin to watch. Every process must call it.

        Args:
            rank: Of this process, of `size`.
            agree_on_port: Gives every process the number that rank 0 passes.
        """
        if size > 1:
            self._peers = _Peers(rank, size, agree_on_port, self._interval)
        self._stop.clear()
        self.message = None
        self._main = threading.get_ident()
        heartbeat.listen(self.beat)
        self._thread = threading.Thread(target=self._watch, name="trl_miner.launching.watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; nothing is ended from now on."""
        self._stop.set()
        heartbeat.stop_listening(self.beat)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5 * self._patience)
        if self._peers is not None:
            self._peers.close()
        self._thread, self._peers = None, None

    # What the thread does.

    def _watch(self) -> None:
        signs = _Signs(self.limit)
        woke = time.monotonic()
        while not self._stop.wait(self._interval):
            now = time.monotonic()
            # Ctrl-Z, a suspended machine: this process was stopped itself, and so may the others have been.
            signs.forgive(now - woke - self._interval - 4 * self._patience)
            woke = now
            self._look_at_folder(signs, now)
            self._look_at_server(signs, now)
            self._look_at_processes(signs, now)
            # The lowest process that can still speak does so; the others would say the same.
            late = 0.0 if self._peers is None else min(self._peers.rank, 4) * self._interval
            reason = signs.reason(now - late, self.server_url)
            if reason is not None and not self._stop.is_set():
                for state in signs.lost_processes(now):
                    _kill_sibling(state)
                self._end(reason)
                return

    def _look_at_folder(self, signs: "_Signs", now: float) -> None:
        growing = self._parts[-1][1] if self._parts else None
        if growing is not None and signs.is_news("folder", _size(growing)):
            self.beat()

    def _look_at_server(self, signs: "_Signs", now: float) -> None:
        if self.server_url is None:
            return
        answers, tokens = _ask_server(self.server_url, self._patience)
        signs.look(_SERVER, answers, now)
        # A server that does not count (--disable-log-stats) cannot be told from a busy one.
        is_blind = answers and tokens is None and self.is_in(GENERATION)
        if is_blind or (tokens is not None and signs.is_news("tokens", tokens)):
            self.beat()

    def _look_at_processes(self, signs: "_Signs", now: float) -> None:
        mine = {"beats": self._beats, "part": self._parts[-1][0] if self._parts else "between two parts"}
        mine |= {"where": self.where(), "pid": os.getpid(), "host": socket.gethostname()}
        states = {0: mine} if self._peers is None else self._peers.exchange(mine)
        for rank in range(1 if self._peers is None else self._peers.size):
            signs.look(("process", rank), rank in states, now)
            if rank in states:
                signs.states[rank] = states[rank]
                signs.look(("progress", rank), signs.is_news(("beats", rank), states[rank]["beats"]), now)

    def _end(self, reason: str) -> None:
        self.message = f"{reason} The run ends after {self.limit:g} s without a sign of life (watchdog_seconds). "
        self.message += "--resume_from_checkpoint latest goes on from the last checkpoint."
        frame = sys._current_frames().get(self._main)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        print(f"\nWhere the main thread was:\n{stack}\ntrl_miner: {self.message}", file=sys.stderr, flush=True)
        if self._peers is None and self._main == threading.main_thread().ident:
            # A notebook should live on: an exception, if the main thread can still take one.
            signal.pthread_kill(self._main, signal.SIGINT)
            if self._stop.wait(GRACE_SECONDS):
                return
        sys.stdout.flush()
        os._exit(EXIT_CODE)


class _Signs:
    """When each thing was last seen alive."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.states: dict[int, dict[str, Any]] = {}
        self._seen: dict[Any, float] = {}
        self._values: dict[Any, Any] = {}

    def look(self, what: Any, is_alive: bool, now: float) -> None:
        """Time begins to run with the first look, whatever it found."""
        if is_alive or what not in self._seen:
            self._seen[what] = now

    def is_news(self, what: Any, value: Any) -> bool:
        """Whether a value is another than at the last look."""
        old, self._values[what] = self._values.get(what), value
        return old != value

    def forgive(self, seconds: float) -> None:
        if seconds > 0:
            self._seen = {what: seen + seconds for what, seen in self._seen.items()}

    def reason(self, now: float, server_url: str | None) -> str | None:
        """Why the run must end, or None."""
        silent = {what: now - seen for what, seen in self._seen.items()}
        progress = [seconds for what, seconds in silent.items() if what[0] == "progress"]
        lost = {what: seconds for what, seconds in silent.items() if what[0] != "progress"}
        if max(lost.values(), default=0.0) < self.limit and min(progress, default=0.0) < self.limit:
            return None
        # Whoever waits for a lost one has not got on for a little longer than the lost one has been silent.
        for what in sorted(lost):
            if lost[what] >= self.limit / 2 and what[0] == "process":
                rank = what[1]
                others = ", ".join(f"process {r} is {self._place(r)}" for r in sorted(self.states) if r != rank)
                return (
                    f"Process {rank} does not answer: it was stopped, or is dead. It was last seen "
                    f"{self._place(rank)}; {others}."
                )
        if lost.get(_SERVER, 0.0) >= self.limit / 2:
            return f"The vLLM server at {server_url} does not answer; process 0 was {self._place(0)}."
        places = ", ".join(f"process {rank} {self._place(rank)}" for rank in sorted(self.states))
        is_asked = server_url is not None and self.states[0]["part"] == GENERATION
        server = f" The vLLM server at {server_url} answers, but generates nothing." if is_asked else ""
        return f"No process gets on: {places}.{server}"

    def lost_processes(self, now: float) -> list[dict[str, Any]]:
        """What is known of the processes that do not answer."""
        lost = [
            rank for kind, rank in self._seen if kind == "process" and now - self._seen[kind, rank] > self.limit / 2
        ]
        return [self.states[rank] for rank in lost if rank in self.states]

    def _place(self, rank: int) -> str:
        state = self.states.get(rank)
        return "before its first step" if state is None else f"in the part '{state['part']}', {state['where']}"


class _Peers:
    """A small store that the watching threads of all processes share, apart from the collectives of the training."""

    def __init__(self, rank: int, size: int, agree_on_port: Callable[[int], int], interval: float) -> None:
        from torch.distributed import TCPStore

        self.rank, self.size, self._interval = rank, size, interval

        def store(port: int) -> Any:
            host = os.environ.get("MASTER_ADDR", "127.0.0.1")
            minute = timedelta(seconds=60)
            return TCPStore(host, port, is_master=rank == 0, wait_for_workers=False, timeout=minute)

        if rank == 0:
            self._store = store(0)  # a port that is free
            agree_on_port(self._store.port)
        else:
            self._store = store(agree_on_port(0))
        self._mine: dict[str, Any] = {}
        self._heard: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._stop = threading.Event()
        self._store.set(str(rank), self._encode(0, {}))
        self._store.wait([str(other) for other in range(size)])
        # In a thread of its own: asking a store whose process is stopped never returns, whatever its time limit.
        threading.Thread(target=self._talk, name="trl_miner.launching.watchdog.store", daemon=True).start()

    @staticmethod
    def _encode(number: int, state: dict[str, Any]) -> str:
        return json.dumps({**state, "number": number})

    def _talk(self) -> None:
        number = 0
        with contextlib.suppress(RuntimeError):  # the store lives in process 0, which may be dead
            while not self._stop.wait(self._interval / 2):
                number += 1
                self._store.set(str(self.rank), self._encode(number, self._mine))
                states = self._store.multi_get([str(rank) for rank in range(self.size)])
                self._heard = [json.loads(state) for state in states]

    def exchange(self, mine: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Tell the others, and hear of those that have spoken since they were last heard."""
        self._mine = mine
        news: dict[int, dict[str, Any]] = {self.rank: mine}
        for rank, state in enumerate(self._heard):
            if rank != self.rank and "beats" in state and state["number"] != self._numbers.get(rank):
                self._numbers[rank] = state["number"]
                news[rank] = state
        return news

    def close(self) -> None:
        self._stop.set()


def _ask_server(url: str, patience: float) -> tuple[bool, float | None]:
    """Whether a vLLM server answers, and how many tokens it has read and generated since it started, if it says."""
    if not is_healthy(url, patience):
        return False, None
    names = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
    lines = (ask(url, "metrics", patience) or "").splitlines()
    values = [line.rpartition(" ")[2] for line in lines if line.startswith(names)]
    try:
        return True, sum(map(float, values)) if values else None
    except ValueError:
        return True, None


def _kill_sibling(state: dict[str, Any]) -> None:
    """End a stopped process of the same launcher, which would wait 30 s for it to end by itself."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{state['pid']}/stat").read_text(encoding="utf-8")
        parent = int(stat.rpartition(")")[2].split()[1])
        if state["host"] == socket.gethostname() and parent == os.getppid() and state["pid"] != os.getpid():
            os.kill(state["pid"], signal.SIGKILL)


def _size(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(path, name)).st_size
    return total
