"""Grading answers: by mathematics or by the option they choose. No answer can hang or crash the caller.

`grade` does not raise for any text. What needs mathematics goes to a pool of processes that can be killed (`pool.py`);
plain integers, missing boxes, exact matches and repeated answers are decided here, once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from . import choices, math_answers
from .pool import configure, shared_pool
from .worker import Job

__all__ = ["GRADERS", "Verdict", "configure", "grade", "shared_pool"]

GRADERS = ("math", "choice")


@dataclass(frozen=True)
class Verdict:
    """What a grader says of one answer.

    Attributes:
        score: 1.0 right, 0.0 wrong, None not judged.
        answer: With votes, a canonical form of the answer, the same for all right answers to a gold; None if there is
            no answer, or none that could be read in time.
        reason: Why it was not judged: "gold" (it cannot be parsed), "limit" (time), "died" (the judging process was
            killed or ran out of memory), "budget" (the time for all together was over).
    """

    score: float | None
    answer: str | None = None
    reason: str | None = None


def grade(
    grader: str,
    texts: Sequence[str],
    golds: Sequence[str],
    *,
    options: Sequence[Sequence[str]] | None = None,
    votes: bool = False,
    unboxed: bool = False,
    budget: float | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> list[Verdict]:
    r"""Grade N answers.

    Args:
        grader: "math" or "choice".
        texts: N outputs of a model, whole.
        golds: N golds. For "math" any LaTeX text, with or without `\boxed{}`; for "choice" a letter, or an option's
            text.
        options: For "choice", the texts of the options of each question, N sequences.
        votes: Fill `Verdict.answer`; of wrong answers to "math" that costs a second parse.
        unboxed: For "math": look for a final answer in texts without a `\boxed{}`. Otherwise they are wrong.
        budget: Seconds for all together; None: no limit but the one of each answer.
        advance: Told of each few answers that are graded, how many; in all at most N.

    Returns:
        N verdicts.

    Raises:
        ValueError: An unknown grader, lengths that differ, or no options.
    """
    if grader not in GRADERS:
        raise ValueError(f"grader must be one of {', '.join(GRADERS)}: got {grader!r}.")
    if len(texts) != len(golds):
        raise ValueError(
            f"There must be one gold per answer: got {len(golds)} for {len(texts)} answers. Repeat each problem's "
            f"gold for all of its answers."
        )
    if grader == "math":
        return _grade_math(texts, golds, votes, unboxed, budget, advance)
    if options is None or len(options) != len(texts):
        raise ValueError(
            f"options must hold the options of every question: got {'none' if options is None else len(options)} for "
            f"{len(texts)} answers. A data set for choice needs a column `options`, a list of texts."
        )
    verdicts = []
    for row in zip(texts, golds, options, strict=True):
        verdicts.append(_grade_choice(*row))
        advance(1)
    return verdicts


def _grade_choice(text: str, gold: Any, options: Sequence[str]) -> Verdict:
    expected = choices.option_index(str(gold), options)
    if expected is None:
        return Verdict(None, reason="gold")
    index = choices.chosen(text, options)
    return Verdict(float(index == expected), None if index is None else ascii_uppercase[index])


def _grade_math(
    texts: Sequence[str],
    golds: Sequence[str],
    votes: bool,
    unboxed: bool,
    budget: float | None,
    advance: Callable[[int], None],
) -> list[Verdict]:
    verdicts: dict[int, Verdict] = {}
    rows_of: dict[Job, list[int]] = {}  # rollouts of one prompt often box the same: judged once
    for row, (text, gold) in enumerate(zip(texts, golds, strict=True)):
        expected = math_answers.gold_content(gold)
        if not expected:
            verdicts[row] = Verdict(None, reason="gold")
            continue
        found = math_answers.boxes(text)
        tail = text[-math_answers.TAIL_CHARACTERS :] if unboxed and "\\boxed" not in text else ""
        score = None if tail.strip() else math_answers.judge_at_sight(found, expected)
        if score is None or (votes and score == 0 and found):
            rows_of.setdefault(Job(found, tail, expected, votes), []).append(row)
        else:
            verdicts[row] = Verdict(score, expected if votes and score else None)
    jobs = list(rows_of)
    advance(len(verdicts))
    counts = [len(rows_of[job]) for job in jobs]
    outcomes = shared_pool().run(jobs, budget, lambda index: advance(counts[index])) if jobs else ()
    for job, outcome in zip(jobs, outcomes, strict=True):
        for row in rows_of[job]:
            verdicts[row] = _verdict(job, outcome.result, outcome.reason)
    return [verdicts[row] for row in range(len(texts))]


def _verdict(job: Job, result: Any, reason: str | None) -> Verdict:
    if result is None:
        return Verdict(None, reason=reason)
    if result.score is None:
        return Verdict(None, reason="gold")
    return Verdict(result.score, (job.expected if result.score else result.vote) if job.want_vote else None)
