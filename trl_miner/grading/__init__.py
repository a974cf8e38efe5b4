"""Grade answers: by mathematics, by the option that they choose, or by a task's own scorer.

No answer can hang or crash the caller.

`grade` raises for no text. What needs mathematics goes to a pool of processes that can be killed (`pool.py`); plain
integers, missing boxes, exact matches and repeated answers are decided here, and only once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, TypeVar

from . import choices, math_answers, tasks
from .pool import configure, shared_pool
from .worker import Job, Result, TaskJob

__all__ = ["GRADERS", "Verdict", "configure", "grade", "shared_pool"]

J = TypeVar("J", Job, TaskJob)
GRADERS = ("math", "choice", "task")


@dataclass(frozen=True)
class Verdict:
    """The verdict on one answer.

    Reasons are "gold" (the gold cannot be parsed), "limit" (time), "died" (the grading process was killed or ran out
    of memory) and "budget" (the time for the whole batch was over).
    """

    is_correct: bool | None  # None: not graded
    answer: str | None = None  # for votes: a canonical form, the same for all right answers to a gold; None: no answer
    reason: str | None = None  # why it was not graded
    reward: float | None = None  # for "task", what the scorer gives, 0 to 1


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
        grader: "math", "choice" or "task".
        texts: N complete outputs of a model.
        golds: N golds. For "math" any LaTeX text, with or without `\boxed{}`; for "choice" a letter, or an option's
            text; for "task" the whole problem, as in the column `task` (see `tasks.py`).
        options: For "choice", the texts of the options of each question, N sequences.
        votes: Fill `Verdict.answer`. For "math" this costs a second parse of each wrong answer.
        unboxed: For "math", look for a final answer in texts without a `\boxed{}`. Otherwise they are wrong.
        budget: Seconds for the whole batch, with waiting for other threads that grade; None for no limit but that of
            each answer.
        advance: Called with the number of answers graded since the last call.

    Returns:
        N verdicts.

    Raises:
        ValueError: An unknown grader, lengths that differ, no options, or more than 26.
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
    if grader == "task":
        return _grade_task(texts, golds, votes, budget, advance)
    if options is None or len(options) != len(texts):
        raise ValueError(
            f"options must hold the options of every question: got {'none' if options is None else len(options)} for "
            f"{len(texts)} answers. A data set for choice needs a column `options`, a list of texts."
        )
    if (most := max(map(len, options), default=0)) > len(ascii_uppercase):
        raise ValueError(
            f"A question for choice must have at most {len(ascii_uppercase)} options, one letter each: got {most}. "
            f"Drop some of the wrong ones."
        )
    verdicts = [_grade_choice(*row) for row in zip(texts, golds, options, strict=True)]
    advance(len(verdicts))
    return verdicts


def _grade_choice(text: str, gold: Any, options: Sequence[str]) -> Verdict:
    expected = choices.option_index(str(gold), options)
    if expected is None:
        return Verdict(None, reason="gold")
    index = choices.chosen(text, options)
    return Verdict(index == expected, None if index is None else ascii_uppercase[index])


def _grade_math(
    texts: Sequence[str],
    golds: Sequence[str],
    votes: bool,
    unboxed: bool,
    budget: float | None,
    advance: Callable[[int], None],
) -> list[Verdict]:
    verdicts: dict[int, Verdict] = {}
    rows_of: dict[Job, list[int]] = {}  # the rollouts of a prompt often box the same answer: grade it once
    for row, (text, gold) in enumerate(zip(texts, golds, strict=True)):
        expected = math_answers.gold_content(gold)
        if not expected:
            verdicts[row] = Verdict(None, reason="gold")
            continue
        boxes = math_answers.boxes(text)
        tail = text[-math_answers.TAIL_CHARACTERS :] if unboxed and "\\boxed" not in text else ""
        is_correct = None if tail.strip() else math_answers.is_correct_as_text(boxes, expected)
        if is_correct is None or (votes and not is_correct and boxes):
            rows_of.setdefault(Job(boxes, tail, expected, votes), []).append(row)
        else:
            verdicts[row] = Verdict(is_correct, expected if votes and is_correct else None)
    advance(len(verdicts))
    for job, rows, result in _run(rows_of, budget, advance):
        if result.is_correct is None:
            verdict = Verdict(None, reason=result.reason or "gold")
        else:
            form = job.expected if result.is_correct else result.wrong_answer
            verdict = Verdict(result.is_correct, form if votes else None)
        verdicts |= dict.fromkeys(rows, verdict)
    return [verdicts[row] for row in range(len(texts))]


def _grade_task(
    texts: Sequence[str], golds: Sequence[str], votes: bool, budget: float | None, advance: Callable[[int], None]
) -> list[Verdict]:
    verdicts = [Verdict(False, reward=0.0)] * len(texts)  # of those without an answer
    rows_of: dict[TaskJob, list[tuple[int, bool]]] = {}
    for row, (text, gold) in enumerate(zip(texts, golds, strict=True)):
        answer, is_marked = tasks.find_answer(text)
        if answer is None:
            advance(1)
        else:
            rows_of.setdefault(TaskJob(gold, answer), []).append((row, is_marked))
    for job, rows, result in _run(rows_of, budget, advance):
        for row, is_marked in rows:
            if result.score is None:
                verdicts[row] = Verdict(None, reason=result.reason or "gold")
                continue
            form = (tasks.own_answer(job.task) if result.is_correct else job.answer) if votes else None
            reward = result.score if is_marked or result.is_correct else 0.0
            verdicts[row] = Verdict(result.is_correct, form, reward=reward)
    return verdicts


def _run(
    rows_of: Mapping[J, Sequence[Any]], budget: float | None, advance: Callable[[int], None]
) -> Iterator[tuple[J, Sequence[Any], Result]]:
    """Grade each job once; yield it with the rows that it decides and its result."""
    jobs, rows = list(rows_of), list(rows_of.values())
    results = shared_pool().run(jobs, budget, lambda index: advance(len(rows[index]))) if jobs else ()
    return zip(jobs, rows, results, strict=True)
