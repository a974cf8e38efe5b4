"""Grading in processes that can be killed: no answer, however hostile, can hang or crash the
caller.

It works from any thread, where math-verify's own limits (SIGALRM) do not exist. The workers are
plain subprocesses: a fork of a training process would inherit its threads' locks and CUDA.
multiprocessing's spawn and forkserver, and so pebble, import the user's script again, and train
twice if that script lacks `if __name__ == "__main__"`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path
from queue import LifoQueue
from threading import Lock
from typing import Any

from ..common.heartbeat import beat
from .confinement import environment
from .worker import Job, TaskJob, Verdict

CPU_SECONDS = 5.0
# On a busy machine 5 seconds of CPU take longer; a worker that has not answered after this is
# stuck.
WALL_FACTOR = 4.0
MEMORY_BYTES = 4 * 2**30
MAX_BYTES = 2**24  # of a verdict
MAX_WORKERS = 8
START_SECONDS = 120.0
MAX_STARTS = 3  # of one worker in a row: a start may be killed
GRACE_SECONDS = 1.0


class Pool:
    """Workers that start when first needed and are replaced when they die; batches of several
    threads share them.

    A worker has `seconds` of CPU time for one answer, and four times that in wall time.
    """

    def __init__(self, workers: int | None = None, seconds: float = CPU_SECONDS) -> None:
        self.workers = [Worker(seconds) for _ in range(workers or default_workers())]
        self._idle: LifoQueue[Worker] = LifoQueue()  # the last one first: it has started
        for worker in self.workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(len(self.workers))

    def run(
        self,
        jobs: Sequence[Job | TaskJob],
        budget: float | None = None,
        on_done: Callable[[int], None] = lambda index: None,
    ) -> list[Verdict]:
        """Grade every job and return a result for each, whatever happens to its worker.

        `budget` is the wall time for the whole batch, in seconds, with waiting for workers; jobs
        that are not done by then have the reason "budget". `on_done` is called with the index of
        each done job.
        """
        results = [Verdict(None, reason="budget")] * len(jobs)
        places = {self._threads.submit(self._grade, job): index for index, job in enumerate(jobs)}
        try:
            for future in as_completed(places, timeout=budget):
                # a batch may take as long as its budget, which is longer than the watchdog's
                # patience may be
                beat()
                results[places[future]] = future.result()
                on_done(places[future])
        except TimeoutError:
            pass
        finally:
            # after the budget, or Ctrl-C; answers that are being graded end at their own limit
            for future in places:
                future.cancel()
        return results

    def _grade(self, job: Job | TaskJob) -> Verdict:
        worker = self._idle.get()
        try:
            return worker.grade(job)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End the workers that are idle. The others end with this process; the next `run` starts
        new ones."""
        idle = [self._idle.get() for _ in range(self._idle.qsize())]
        for worker in idle:
            worker.stop(patience=GRACE_SECONDS)
            self._idle.put(worker)

    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self.workers if worker.process is not None]


class Worker:
    """A process that grades one answer at a time. It starts when first needed, and again after it
    has died."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: Any = None

    def grade(self, job: Job | TaskJob) -> Verdict:
        """Grade a job. It takes no longer than the limits, whatever the process does."""
        if self.process is None or self.process.poll() is not None:  # it may have died while idle
            self.stop()
            self._start()
        # The process ends itself at its limits; this is for one that cannot (stopped, or waiting
        # for a disk).
        limit = WALL_FACTOR * self.seconds + GRACE_SECONDS
        # the first one imports reasoning-gym, which takes long on a busy machine
        if isinstance(job, TaskJob):
            limit += START_SECONDS
        is_over = False
        try:
            self.connection.send_bytes(json.dumps([type(job).__name__, *job]).encode())
            if self.connection.poll(limit):
                # never a pickle: what an answer may have made of the worker must not reach us
                return Verdict(**json.loads(self.connection.recv_bytes(MAX_BYTES)))
            is_over = True
        except (EOFError, OSError, ValueError, TypeError):
            pass
        status = self.stop(patience=0 if is_over else GRACE_SECONDS)
        return Verdict(
            None,
            reason="limit" if is_over or status in (-signal.SIGPROF, -signal.SIGALRM) else "died",
        )

    def stop(self, patience: float = 0) -> int | None:
        """Close the connection, kill the process if it lives on for `patience` seconds, and return
        its exit status."""
        if self.process is None:
            return None
        process, self.process = self.process, None
        self.connection.close()
        try:  # a process that died by itself has a status that says why
            return process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _start(self) -> None:
        for _ in range(MAX_STARTS):
            self.process, self.connection = _spawn(self.seconds)
            try:
                if self.connection.poll(START_SECONDS):
                    self.connection.recv_bytes(MAX_BYTES)  # it is ready
                    return
            except (EOFError, OSError):
                pass
            status = self.stop(patience=GRACE_SECONDS)
        raise RuntimeError(
            f"A grading process must start within {START_SECONDS:.0f} seconds: this one ended with"
            f" status {status} (negative: a signal). Its output on stderr says why."
        )


def _spawn(seconds: float) -> tuple["subprocess.Popen[bytes]", Connection]:
    ours, theirs = socket.socketpair()
    command = f"main({theirs.fileno()}, {seconds}, {WALL_FACTOR}, {MEMORY_BYTES})"
    paths = [
        str(Path(__file__).resolve().parents[2]),
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    ]
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from trl_miner.grading.worker import main; {command}"],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment([path for path in paths if path]),
            cwd="/",
        )
    return process, Connection(ours.detach())


def default_workers() -> int:
    """Return this rank's share of the CPUs that its processes may use, 1 to 8."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_WORKERS, cpus // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


_shared: Pool | None = None
_settings: tuple[int | None, float] = (None, CPU_SECONDS)
_shared_lock = Lock()


def shared_pool() -> Pool:
    """Return this process's pool. Its workers end with the process; a forked child starts its
    own."""
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
    """Let go of the parent's pool, and of its lines to the workers, which would keep them alive."""
    global _shared, _shared_lock
    _shared, _shared_lock = None, Lock()


os.register_at_fork(after_in_child=_after_fork)
