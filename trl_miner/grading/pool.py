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
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Lock, Timer

from .worker import NO_MEMORY, Job, Verdict

SECONDS = 5.0  # of CPU time, for one answer
WALL_FACTOR = 4.0  # a worker that is silent for so many times longer was stopped
START_SECONDS = 120.0
MAX_WORKERS = 8
# How an answer itself ends its worker: by CPU time, memory, or a crash of the interpreter.
_OWN_ENDS = (-signal.SIGPROF, NO_MEMORY, -signal.SIGSEGV, -signal.SIGABRT)
# What a worker needs of the environment; anything else may be a secret.
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")


class Worker:
    """A process that grades one answer at a time; it starts when needed, and after it has died."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.process: subprocess.Popen[str] | None = None

    def grade(self, job: Job) -> Verdict:
        """Grade a job within its limits. A worker that something else ends is asked once more.

        Raises:
            RuntimeError: It cannot start.
        """
        for _ in range(2):
            process = self.process = self.process or _start(self.seconds)
            lines = _ask(process, json.dumps(job), 2, WALL_FACTOR * self.seconds)
            if len(lines) == 2:
                # never a pickle: what an answer may have made of the worker must not reach us
                return Verdict(*json.loads(lines[1]))
            self.process = None
            if process.wait() in _OWN_ENDS:
                return Verdict(False if lines else None, reason="limit")
        if process.returncode > 0:
            raise RuntimeError("A grading process failed. Its output on stderr says why.")
        return Verdict(None, reason="died")


def _start(seconds: float) -> "subprocess.Popen[str]":
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    paths = [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", f"from trl_miner.grading.worker import main; main({seconds})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # a fixed order of sets
        env=environment | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"},
    )
    _ask(process, "", 1, START_SECONDS)
    return process


def _ask(process: "subprocess.Popen[str]", line: str, count: int, seconds: float) -> list[str]:
    """Write a line to a process and return the lines of its answer, fewer where it ends or is
    silent for too long."""
    assert process.stdin and process.stdout
    timer = Timer(seconds, process.kill)  # one that is stopped cannot end itself
    timer.start()
    try:
        if line:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        lines = [process.stdout.readline() for _ in range(count)]
    except OSError:
        lines = []
    timer.cancel()
    return [line for line in lines if line.endswith("\n")]


class Pool:
    """Workers that batches of several threads share; each has `seconds` of CPU for one answer."""

    def __init__(self, workers: int | None = None, seconds: float | None = None) -> None:
        self.workers = [Worker(seconds or SECONDS) for _ in range(workers or default_workers())]
        self._idle = [*self.workers]
        self._threads = ThreadPoolExecutor(len(self.workers))

    def run(
        self,
        jobs: Iterable[Job],
        budget: float | None = None,
        on_done: Callable[[Job], object] = id,
    ) -> dict[Job, Verdict]:
        """Return a verdict for every job, whatever happens to its worker.

        `budget` is the wall time for the whole batch, in seconds, with waiting for workers; jobs
        that are not done by then have the reason "budget". `on_done` is called with each done job.
        """
        verdicts = dict.fromkeys(jobs, Verdict(None, reason="budget"))
        futures = {self._threads.submit(self._grade, job): job for job in verdicts}
        try:
            for future in as_completed(futures, timeout=budget):
                verdicts[futures[future]] = future.result()
                on_done(futures[future])
        except TimeoutError:
            pass
        finally:  # after the budget, or Ctrl-C; what is being graded ends at its own limit
            for future in futures:
                future.cancel()
        return verdicts

    def _grade(self, job: Job) -> Verdict:
        worker = self._idle.pop()  # the last one has started; there are as many as threads
        try:
            return worker.grade(job)
        finally:
            self._idle.append(worker)

    def close(self) -> None:
        """End the workers, once they have graded what they were given."""
        self._threads.shutdown(cancel_futures=True)
        for worker in self.workers:
            if worker.process is not None:
                worker.process.communicate()


def default_workers() -> int:
    """Return this rank's share of the CPUs that its processes may use, 1 to 8."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_WORKERS, cpus // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


_shared: list[Pool] = []  # one, once it is needed; a forked child starts its own
_lock = Lock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
os.register_at_fork(after_in_child=_shared.clear)


def shared_pool() -> Pool:
    """Return this process's pool."""
    with _lock:
        if not _shared:
            _shared.append(Pool())
        return _shared[0]


def configure(workers: int | None = None, seconds: float | None = None) -> None:
    """Set the number of workers, and the seconds of CPU time for one answer; None: the default."""
    with _lock:
        old, _shared[:] = [*_shared], [Pool(workers, seconds)]
    for pool in old:
        pool.close()
