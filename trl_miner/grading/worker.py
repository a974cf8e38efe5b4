"""A process that grades answers one by one, and that the kernel kills when one takes too long.

`pool.py` starts it with one end of a socket pair. It reads a job, sends its result, and ends when
the other end is closed. The timers' signals keep their default action, death: a handler in Python
would wait for the C call that holds the interpreter, which may never return. So a worker that hangs
ends by itself, even if nobody is left to end it.

A verdict depends on the gold and the answer alone. sympy alone is not like that: it draws random
points, asks for the properties of an expression in random order, iterates over sets of strings, and
keeps what it once found in caches. So `pool.py` fixes the seed of Python's hashes, and this process
seeds every generator and empties the caches before each answer. A fork for each answer would do it
too, but costs several times the grading.
"""

import json
import logging
import random
import resource
import signal
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from . import confinement, math_answers, tasks

PREPARE_SECONDS = 5.0  # of CPU, to make a problem again; whoever wrote it may be a stranger


class Job(NamedTuple):
    """One answer to grade: the contents of its boxes or, without any, the text in which to look for
    an answer."""

    boxes: tuple[str, ...]
    tail: str
    expected: str
    want_vote: bool


class TaskJob(NamedTuple):
    """One answer to a problem of reasoning-gym, for the scorer of its family."""

    task: str
    answer: str
    is_marked: bool  # else only a right one has a reward
    want_vote: bool


@dataclass(frozen=True)
class Verdict:
    """The verdict on one answer.

    Reasons are "gold" (the gold cannot be parsed), "task" (reasoning-gym does not make the
    problem), "limit" (time), "died" (the grading process was killed or ran out of memory) and
    "budget" (the time for the whole batch was over). An answer that exceeded a limit which its gold
    keeps is wrong, with that reason.
    """

    is_correct: bool | None  # None: not graded
    # for votes: a canonical form, the same for all right answers to a gold; None: no answer
    answer: str | None = None
    reason: str | None = None  # why it was not graded
    score: float | None = None  # for "task", what the scorer gives, 0 to 1

    @property
    def reward(self) -> float | None:
        """The score, else 1 for a right answer and 0 for a wrong one; None: not graded."""
        return (
            self.score
            if self.score is not None or self.is_correct is None
            else float(self.is_correct)
        )


def prepare(job: Job | TaskJob) -> bool:
    """Load what a job needs besides its answer; return whether that worked."""
    try:
        return not isinstance(job, TaskJob) or bool(tasks.load(job.task))
    except Exception:  # no problem of reasoning-gym, or of another version of it
        return False


def grade(job: Job | TaskJob) -> Verdict:
    """Grade one job in this process, without a time limit."""
    if isinstance(job, TaskJob):
        score, expected = tasks.score(job.task, job.answer)
        form = expected if score == 1.0 else job.answer
        return Verdict(
            score == 1.0,
            form if job.want_vote else None,
            score=score if job.is_marked or score == 1.0 else 0.0,
        )
    is_correct = math_answers.is_correct(job.boxes, job.tail, job.expected)
    if is_correct is None:
        return Verdict(None, reason="gold")
    if not job.want_vote:
        return Verdict(is_correct)
    return Verdict(
        is_correct, job.expected if is_correct else math_answers.vote(job.boxes, job.tail)
    )


def reset() -> None:
    """Put back what may decide a verdict of sympy and is not in the gold or the answer: chance,
    order and caches."""
    import sympy.core.assumptions
    from sympy.core.cache import clear_cache
    from sympy.core.random import seed
    from sympy.core.symbol import Dummy

    # In a fixed order: by default it asks for properties in a random one, which would depend on
    # earlier answers.
    sympy.core.assumptions.shuffle = list.sort
    clear_cache()
    random.seed(0)
    seed(0)
    # in hashes and orders; above those that modules made
    Dummy._base_dummy_index, Dummy._count = 10**8, 0


def _limit(cpu_seconds: float, wall_factor: float) -> None:
    """Let the kernel kill this process if it takes longer from here on; 0: it may."""
    # CPU time, so that a verdict does not depend on how busy the machine is; wall time for what
    # uses no CPU.
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, wall_factor * cpu_seconds)


def main(descriptor: int, cpu_seconds: float, wall_factor: float, memory_bytes: int) -> None:
    """Grade until the socket closes."""
    # Ctrl-C reaches the whole group; the pool decides when we end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(name, signal.SIG_DFL)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ValueError, OSError):  # not every system has them; the time limits hold anyway
        pass
    confinement.leave_network()
    logging.disable(logging.CRITICAL)
    # imports sympy and fills its tables before the clock runs
    grade(Job(("x + 1",), "", "x", True))
    connection = Connection(descriptor)
    is_confined = False
    try:
        connection.send_bytes(b"ready")
        while True:
            kind, *fields = json.loads(connection.recv_bytes())
            if kind == TaskJob.__name__:
                with suppress(Exception):  # the verdict says that there is no such problem
                    import reasoning_gym  # noqa: F401, before the clock runs
            if not is_confined:  # after the imports, which may store compiled files
                confinement.forbid_changes()
                is_confined = True
            verdict = _grade_in_time(kind, fields, cpu_seconds, wall_factor)
            connection.send_bytes(json.dumps(asdict(verdict)).encode())
    except (EOFError, OSError):  # the pool was closed
        return


def _grade_in_time(kind: str, fields: list[Any], cpu_seconds: float, wall_factor: float) -> Verdict:
    job = TaskJob(*fields) if kind == TaskJob.__name__ else Job(tuple(fields[0]), *fields[1:])
    _limit(PREPARE_SECONDS, wall_factor)
    is_ready = prepare(job)
    _limit(cpu_seconds, wall_factor)
    reset()
    verdict = grade(job) if is_ready else Verdict(None, reason="task")
    _limit(0, wall_factor)
    return verdict
