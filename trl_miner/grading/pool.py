"""Workers that can be killed: no answer, however hostile, can hang or crash the caller.

It works from any thread, where math-verify's own limits (SIGALRM) do not exist. The workers are
plain subprocesses: a fork of a training process would inherit its threads' locks and CUDA, and
multiprocessing's spawn would import the user's script again.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Timer
from typing import Any

from .worker import NO_MEMORY, Job, Verdict

SECONDS = 5.0  # of CPU time, for one answer
WALL_FACTOR = 4.0  # a worker that is silent for so many times longer was stopped
# How an answer itself ends its worker: by CPU time, memory, or a crash of the interpreter.
_OWN_ENDS = (-signal.SIGPROF, NO_MEMORY, -signal.SIGSEGV, -signal.SIGABRT)


class Pool:
    """Workers that batches of several threads share; each has `seconds` of CPU for one answer.

    Attributes:
        idle: Those that do not grade; None for one that has not started, or has died.
    """

    def __init__(self, workers: int | None = None, seconds: float | None = None) -> None:
        self.seconds = seconds or SECONDS
        self.idle: list[Any] = [None] * (workers or default_workers())
        self._threads = ThreadPoolExecutor(len(self.idle))

    def run(self, jobs: Iterable[Job], budget: float | None = None) -> dict[Job, Verdict]:
        """Return a verdict for every job, whatever happens to its worker.

        `budget` is the wall time for the whole batch, in seconds, with waiting for workers; jobs
        that are not done by then have the reason "budget".

        Raises:
            RuntimeError: A worker cannot start.
        """
        futures = {job: self._threads.submit(self._grade, job) for job in jobs}
        try:
            done, _ = wait(futures.values(), budget)
        finally:  # after the budget, or Ctrl-C; what is being graded ends at its own limit
            for future in futures.values():
                future.cancel()
        return {
            job: future.result() if future in done else Verdict(None, reason="budget")
            for job, future in futures.items()
        }

    def _grade(self, job: Job) -> Verdict:
        """Grade a job within its limits. A worker that something else ends is asked once more."""
        process = self.idle.pop()  # the last one has started; there are as many as threads
        try:
            for _ in range(2):
                patience = WALL_FACTOR * self.seconds + 120 * (process is None)  # to start
                process = process or _start(self.seconds)
                lines = _ask(process, json.dumps(job), patience)
                if len(lines) == 2:
                    # never a pickle: what an answer may have made of the worker must not reach us
                    return Verdict(*json.loads(lines[1]))
                status, process = process.wait(), None
                if status in _OWN_ENDS:
                    return Verdict(False if lines else None, reason="limit")
                if status > 0:
                    raise RuntimeError("A grading process failed. Its output on stderr says why.")
            return Verdict(None, reason="died")
        finally:
            self.idle.append(process)

    def close(self) -> None:
        """End the workers, once they have graded what they were given."""
        self._threads.shutdown(cancel_futures=True)
        for process in filter(None, self.idle):
            process.communicate()


def _start(seconds: float) -> Any:
    paths = [str(Path(__file__).parents[2]), *sys.path]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"from trl_miner.grading.worker import main; main({seconds})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # a fixed order of sets, and no secret
        env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"},
    )


def _ask(process: Any, line: str, seconds: float) -> list[str]:
    """Return the two lines that a process answers, fewer where it ends or is silent for too long."""
    timer = Timer(seconds, process.kill)  # one that is stopped cannot end itself
    timer.start()
    try:
        print(line, file=process.stdin, flush=True)
    except OSError:  # it has ended
        pass
    lines = [process.stdout.readline(), process.stdout.readline()]
    timer.cancel()
    return [*filter(None, lines)]


def default_workers() -> int:
    """Return this rank's share of the CPUs that its processes may use, 1 to 8."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(8, cpus // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


_pools: dict[int, Pool] = {}  # by process: a forked child starts its own


def shared_pool() -> Pool:
    """Return this process's pool."""
    if os.getpid() not in _pools:
        _pools[os.getpid()] = Pool()
    return _pools[os.getpid()]


def configure(workers: int | None = None, seconds: float | None = None) -> None:
    """Set the number of workers, and the seconds of CPU time for one answer; None: the default."""
    old, _pools[os.getpid()] = _pools.get(os.getpid()), Pool(workers, seconds)
    if old is not None:
        old.close()
