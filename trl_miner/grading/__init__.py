"""Grade answers: by mathematics, by the option that they choose, or by a task's own scorer.

No answer can hang or crash the caller.

`grade` raises for no text. What needs mathematics goes to a pool of processes that can be killed
(`pool.py`); plain integers, missing boxes, exact matches and repeated answers are decided here, and
only once.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from . import choices, math_answers, tasks
from .pool import configure, shared_pool
from .thinking import after_thinking
from .worker import Job, TaskJob, Verdict

__all__ = ["GRADERS", "Verdict", "configure", "grade", "shared_pool"]

GRADERS = ("math", "choice", "task")


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
        texts: N complete outputs of a model. What stands before the end of its thinking, such as
            `</think>`, is no answer.
        golds: N golds. For "math" any LaTeX text, with or without `\boxed{}`; for "choice" a
            letter, or an option's text; for "task" the whole problem, as in the column `task` (see
            `tasks.py`).
        options: For "choice", the texts of the options of each question, N sequences.
        votes: Fill `Verdict.answer`. For "math" this costs a second parse of each wrong answer.
        unboxed: For "math", look for a final answer in texts without a `\boxed{}`. Otherwise they
            are wrong.
        budget: Seconds for the whole batch, with waiting for other threads that grade; None: no
            limit.
        advance: Called with the number of answers graded since the last call.
    """
    if grader not in GRADERS:
        raise ValueError(f"grader must be one of {', '.join(GRADERS)}: got {grader!r}.")
    if len(texts) != len(golds):
        raise ValueError(
            f"There must be one reference answer per completion: got {len(golds)} for {len(texts)} answers. Repeat"
            " them."
        )
    texts = [after_thinking(text) for text in texts]
    if grader == "choice":
        chosen = [
            _choose(*row) for row in zip(texts, golds, _checked(options, len(texts)), strict=True)
        ]
        advance(len(chosen))
        return chosen
    decide = _decide_math if grader == "math" else _decide_task
    found = [decide(*row, votes, unboxed) for row in zip(texts, golds, strict=True)]
    # the rollouts of a prompt often box the same answer: grade it once
    rows_of = Counter(each for each in found if not isinstance(each, Verdict))
    jobs = [*rows_of]
    advance(len(found) - rows_of.total())
    verdicts: dict[Job | TaskJob, Verdict] = {}
    if jobs:
        by_workers = shared_pool().run(jobs, budget, lambda index: advance(rows_of[jobs[index]]))
        verdicts = dict(zip(jobs, by_workers, strict=True))
        verdicts |= _that_only_cost_time(verdicts, budget)
    return [each if isinstance(each, Verdict) else verdicts[each] for each in found]


def _checked(options: Sequence[Sequence[str]] | None, count: int) -> Sequence[Sequence[str]]:
    if options is None or len(options) != count:
        raise ValueError(
            "options must hold the options of every question: got"
            f" {'none' if options is None else len(options)} for {count} answers."
        )
    if (most := max(map(len, options), default=0)) > len(ascii_uppercase):
        raise ValueError(
            f"A question must have at most {len(ascii_uppercase)} options, one letter each: got"
            f" {most}."
        )
    return options


def _choose(text: str, gold: Any, options: Sequence[str]) -> Verdict:
    expected = choices.option_index(gold, options)
    if expected is None:
        return Verdict(None, reason="gold")
    index = choices.chosen(text, options)
    return Verdict(index == expected, None if index is None else ascii_uppercase[index])


def _decide_math(text: str, gold: Any, votes: bool, unboxed: bool) -> Verdict | Job:
    """Return the verdict where no mathematics is needed, else the job for a worker."""
    expected = math_answers.gold_content(gold)
    if not expected:
        return Verdict(None, reason="gold")
    boxes = math_answers.boxes(text)
    tail = text[-math_answers.TAIL_CHARACTERS :] if unboxed and "\\boxed" not in text else ""
    is_correct = None if tail.strip() else math_answers.is_correct_as_text(boxes, expected)
    if is_correct is None or (votes and not is_correct and boxes):
        return Job(boxes, tail, expected, votes)
    return Verdict(is_correct, expected if votes and is_correct else None)


def _that_only_cost_time(
    verdicts: Mapping[Job | TaskJob, Verdict], budget: float | None
) -> dict[Job | TaskJob, Verdict]:
    """Return the verdict "wrong" for answers that were stopped, where the gold itself is graded in
    time: to hang the verifier must not be cheaper than to be wrong."""
    stopped = {
        job: Verdict(False, reason=verdict.reason)
        for job, verdict in verdicts.items()
        if isinstance(job, Job) and verdict.reason in ("limit", "died")
    }
    golds = [*{Job((job.expected,), "", job.expected, False): None for job in stopped}]
    of_golds = shared_pool().run(golds, budget) if golds else []
    quick = {
        gold.expected
        for gold, verdict in zip(golds, of_golds, strict=True)
        if verdict.is_correct is not None
    }
    return {job: verdict for job, verdict in stopped.items() if job.expected in quick}


def _decide_task(text: str, task: str, votes: bool, unboxed: bool) -> Verdict | TaskJob:
    answer, is_marked = tasks.find_answer(text)
    return Verdict(False) if answer is None else TaskJob(task, answer, is_marked, votes)
