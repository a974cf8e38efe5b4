"""Grading in processes that can be killed: no answer, however hostile, can hang or crash the caller.

It works from any thread, where math-verify's own limits (SIGALRM) do not exist. The workers are plain subprocesses: a
fork of a training process would inherit its threads' locks and CUDA, and multiprocessing's spawn would import the
user's script again, and train twice if that script lacks `if __name__ == "__main__"`.
"""

import atexit
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

from ..heartbeat import beat
from .worker import Job, Result, TaskJob

CPU_SECONDS = 5.0
# On a busy machine 5 seconds of CPU take longer; a worker that has not answered after this is stuck.
WALL_FACTOR = 4.0
MEMORY_BYTES = 4 * 2**30
MAX_WORKERS = 8
START_SECONDS = 120.0
MAX_FAILED_STARTS = 3  # in a row
GRACE_SECONDS = 1.0

_pools: "weakref.WeakSet[Pool]" = weakref.WeakSet()


class Outcome(NamedTuple):
    """A result, or why it is missing: "limit" (time), "died" (killed, out of memory), "budget" (the batch's time)."""

    result: Result | None
    reason: str | None


class Pool:
    """A pool of workers, which start when first needed and are replaced when they die.

    A worker has `seconds` of CPU time for one answer, and four times that in wall time.
    """

    def __init__(self, workers: int | None = None, seconds: float = CPU_SECONDS) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1: got {workers}. Leave it out to use all available CPUs.")
        if not seconds > 0:
            raise ValueError(f"seconds must be positive: got {seconds}. The default is {CPU_SECONDS}.")
        self.size = workers or default_workers()
        self.seconds = seconds
        self._lock = threading.Lock()  # one batch at a time
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        _pools.add(self)

    def run(
        self,
        jobs: Sequence[Job | TaskJob],
        budget: float | None = None,
        on_done: Callable[[int], None] = lambda index: None,
    ) -> list[Outcome]:
        """Grade every job and return an outcome for each, whatever happens to its worker.

        `budget` is the wall time for the whole batch, in seconds, with the batches of other threads before it; jobs
        that are not done by then have the reason "budget". `on_done` is called with the index of each done job.
        """
        outcomes: list[Outcome] = [Outcome(None, "budget")] * len(jobs)

        def record(index: int, outcome: Outcome) -> None:
            outcomes[index] = outcome
            on_done(index)

        waiting = deque(range(len(jobs)))
        seconds = float("inf") if budget is None else budget
        deadline = time.monotonic() + seconds
        if not self._lock.acquire(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX))):
            return outcomes
        try:
            while (waiting or self._busy()) and time.monotonic() < deadline:
                self._hand_out(jobs, waiting)
                self._collect(record, deadline)
        finally:
            # After the budget, or an exception (Ctrl-C): a worker that is still grading would answer too late.
            for worker in self._busy():
                self._drop(worker)
            self._lock.release()
        return outcomes

    def _busy(self) -> list["_Worker"]:
        return [worker for worker in self._workers if worker.job is not None]

    def close(self) -> None:
        """End the workers. The next `run` starts new ones."""
        with self._lock:
            for worker in self._workers:
                worker.connection.close()  # all at once: each ends when it sees this
            for worker in list(self._workers):
                self._drop(worker, patience=GRACE_SECONDS)

    def kill(self) -> None:
        """End the workers at once, whatever another thread is doing with them."""
        for worker in list(self._workers):
            worker.process.kill()
            worker.process.wait()

    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def forget(self) -> None:
        """Drop the parent's workers, in a forked child, without ending them."""
        for worker in self._workers:
            worker.connection.close()
            worker.process.returncode = 0  # not our child: nothing to wait for
        self._workers = []
        self._lock = threading.Lock()  # one batch at a time

    def _hand_out(self, jobs: Sequence[Job | TaskJob], waiting: deque[int]) -> None:
        for _ in range(min(self.size, len(waiting) + len(self._busy())) - len(self._workers)):
            self._workers.append(_Worker(self.seconds))
        for worker in list(self._workers):
            if waiting and worker.ready and worker.job is None:
                if worker.take(waiting[0], jobs[waiting[0]]):
                    waiting.popleft()
                else:  # it died while idle: the job goes to another
                    self._drop(worker)

    def _collect(self, record: Callable[[int, Outcome], None], deadline: float) -> None:
        """Wait until a worker answers, starts, dies or exceeds its limit, and record it."""
        pending = [worker for worker in self._workers if worker.job is not None or not worker.ready]
        next_event = min([deadline, *(worker.deadline for worker in pending)])
        timeout = None if next_event == float("inf") else max(0.0, next_event - time.monotonic())
        readable = wait([worker.connection for worker in pending], timeout) if pending else []
        beat()  # a batch may take as long as its budget, which is longer than the watchdog's patience may be
        for worker in pending:
            if worker.connection in readable:
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    self._replace(worker, record)
                    continue
                if worker.job is None:
                    worker.ready, worker.deadline = True, float("inf")
                    self._failed_starts = 0
                else:
                    record(worker.job, Outcome(message, None))
                    worker.job, worker.deadline = None, float("inf")
            elif time.monotonic() >= worker.deadline:
                self._replace(worker, record)

    def _replace(self, worker: "_Worker", record: Callable[[int, Outcome], None]) -> None:
        """Record why a worker's job has no result; the next round starts another worker."""
        stuck = time.monotonic() >= worker.deadline
        status = self._drop(worker, patience=0 if stuck else GRACE_SECONDS)
        if worker.job is not None:
            over = stuck or status in (-signal.SIGPROF, -signal.SIGALRM)
            record(worker.job, Outcome(None, "limit" if over else "died"))
        elif not worker.ready:
            self._failed_starts += 1
            # A worker that was killed is replaced; one that ended by itself would do so again.
            if status >= 0 or self._failed_starts >= MAX_FAILED_STARTS:
                raise RuntimeError(
                    f"A grading process must start within {START_SECONDS:.0f} seconds: this one ended with status "
                    f"{status} (negative: a signal). Its output on stderr says why."
                )

    def _drop(self, worker: "_Worker", patience: float = 0) -> int:
        self._workers.remove(worker)
        return worker.end(patience)


class _Worker:
    """A process and the connection to it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ready = False
        self.job: int | None = None
        self.deadline = time.monotonic() + START_SECONDS
        ours, theirs = socket.socketpair()
        command = f"main({theirs.fileno()}, {seconds}, {WALL_FACTOR * seconds}, {MEMORY_BYTES})"
        package_root = str(Path(__file__).resolve().parents[2])
        paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from trl_miner.grading.worker import main; {command}"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Without a fixed seed sympy would iterate over its sets in another order in each process.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"},
            )
        # A stopped process does not read; sending it a job must not wait for that.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(GRACE_SECONDS), 0))
        self.connection = Connection(ours.detach())

    def take(self, index: int, job: Job | TaskJob) -> bool:
        """Send a job; return False if the process is gone."""
        try:
            self.connection.send(job)
        except OSError:
            return False
        self.job = index
        # The process ends itself at its limits; this is for one that cannot (stopped, or waiting for a disk).
        self.deadline = time.monotonic() + WALL_FACTOR * self.seconds + GRACE_SECONDS
        if isinstance(job, TaskJob):  # the first one imports reasoning-gym, which takes long on a busy machine
            self.deadline += START_SECONDS
        return True

    def end(self, patience: float) -> int:
        """Close the connection, kill the process if it lives on for `patience` seconds, and return its exit status."""
        self.connection.close()
        try:
            # A process that died by itself has a status that says why.
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def default_workers() -> int:
    """Return this rank's share of the CPUs that its processes may use, 1 to 8."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_WORKERS, cpus // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


_shared: Pool | None = None
_settings: tuple[int | None, float] = (None, CPU_SECONDS)
_shared_lock = threading.Lock()


def shared_pool() -> Pool:
    """Return this process's pool. It ends with the process; a forked child starts its own."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Pool(*_settings)
        return _shared


def configure(workers: int | None = None, seconds: float = CPU_SECONDS) -> None:
    """Set the size and the limit of this process's pool; the arguments are those of `Pool`."""
    global _shared, _settings
    replacement = Pool(workers, seconds)
    with _shared_lock:
        old, _shared, _settings = _shared, replacement, (workers, seconds)
    if old is not None:
        old.close()


def _after_fork() -> None:
    global _shared, _shared_lock
    _shared_lock = threading.Lock()
    _shared = None
    for pool in _pools:
        pool.forget()


def _at_exit() -> None:
    for pool in _pools:
        pool.kill()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
