"""A process that grades answers one by one; the kernel kills it if one takes too long.

`pool.py` starts it. It reads a job from each line of its input, writes one line when the reference
is read and one with the verdict, and ends with its input. The timer's signal keeps its default
action, death: a handler in Python would wait for the call that holds the interpreter, which may
never return.

A verdict depends on the reference and the answer alone. sympy draws random numbers, so it is seeded
before each answer.
"""

import json
import resource
import signal
import sys
from typing import NamedTuple

MEMORY_BYTES = 2 * 2**30
NO_MEMORY = 77  # exit status


class Job(NamedTuple):
    """The distinct answers of one text, to be graded. None: to tell how the reference is read."""

    reference: str
    answers: tuple[str, ...]
    votes: bool


class Verdict(NamedTuple):
    """The verdict on one text.

    Attributes:
        is_correct: None where it could not be graded.
        answer: With votes, one form for equal answers, the reference for correct ones; None: none.
        reason: Why it was not graded, or why it is wrong: "gold" (the reference cannot be read),
            "limit" (of time or memory; None if the reference itself exceeds it), "died" (something
            else ended its process, twice) or "budget" (the time for the whole batch was over).
    """

    is_correct: bool | None
    answer: str | None = None
    reason: str | None = None


def grade(job: Job) -> Verdict:
    """Grade a job in this process, without any limit."""
    from . import agreement

    if not job.answers:
        return Verdict(*agreement.form(job.reference))
    # a list may stand in several boxes
    several = [", ".join(job.answers)] if len(job.answers) > 1 else []
    for answers in (job.answers, several):
        if answers and all(agreement.agrees(job.reference, answer) for answer in answers):
            return Verdict(True, job.reference)
    voted = {agreement.form(answer)[1] for answer in job.answers if job.votes}
    return Verdict(False, voted.pop() if len(voted) == 1 else None)


def main(seconds: float) -> None:
    """Grade until the input ends; `seconds` of CPU time for each answer."""
    from sympy.core.random import seed

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    output, sys.stdout = sys.stdout, sys.stderr
    grade(Job(r"\frac{x}{2}", ("x + 1",), True))  # fills the parser's tables before the clock runs
    try:
        for line in sys.stdin:
            reference, answers, votes = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            seed(0)
            grade(Job(reference, (), False))
            print("the reference is read", file=output, flush=True)
            verdict = grade(Job(reference, answers, votes))
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(verdict), file=output, flush=True)
    except MemoryError:
        sys.exit(NO_MEMORY)
