"""A process that judges answers, one after another, and that the kernel kills when one takes too long.

`pool.py` starts it with one end of a socket pair: it reads a job, writes its result, and ends when the other end is
closed. The timers' signals keep their default action, death: a handler in Python would wait for the C call that holds
the interpreter, which may never end. So a worker that judges for ever ends by itself, even if the process that started
it is long dead.
"""

import logging
import resource
import signal
from multiprocessing.connection import Connection
from typing import NamedTuple

from . import math_answers


class Job(NamedTuple):
    """One answer to judge: the contents of its boxes, or, without any, the text to look for an answer in."""

    found: tuple[str, ...]
    unboxed: str
    expected: str
    want_vote: bool


class Result(NamedTuple):
    """A verdict, None if the gold cannot be parsed, and the answer's form for votes (of a wrong answer, if wanted)."""

    score: float | None
    vote: str | None


def judge(job: Job) -> Result:
    """The verdict on one job, in this process, without a time limit."""
    if job.found:
        score = math_answers.judge(job.found, job.expected)
        wrong_vote = math_answers.vote(job.found) if job.want_vote and score == 0 else None
    else:
        score = math_answers.judge_unboxed(job.unboxed, job.expected)
        wrong_vote = math_answers.vote_unboxed(job.unboxed) if job.want_vote and score == 0 else None
    return Result(score, wrong_vote)


def main(descriptor: int, cpu_seconds: float, wall_seconds: float, memory_bytes: int) -> None:
    """Judge until the socket closes; limits of one job in seconds of CPU and of wall time, of the process in bytes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the pool decides when we end
    for name in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(name, signal.SIG_DFL)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ValueError, OSError):  # not on every system; the time limits hold anyway
        pass
    logging.disable(logging.CRITICAL)  # math-verify reports every answer that it cannot parse
    judge(Job(("\\frac{1}{2}",), "", "0.5", True))  # imports and fills sympy's caches before the clock runs
    connection = Connection(descriptor)
    connection.send("ready")
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            return
        # CPU time, so that a verdict does not depend on how busy the machine is; wall time for what uses no CPU.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        signal.setitimer(signal.ITIMER_REAL, wall_seconds)
        result = judge(job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            connection.send(result)
        except OSError:
            return
