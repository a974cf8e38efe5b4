"""Grade answers: by mathematics, or by the option that they choose.

No answer can hang or crash the caller, and `grade` raises for no text. What needs mathematics goes
to processes that can be killed (`pool.py`). Equal text, plain numbers and missing boxes are decided
here, and equal answers to a reference only once.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from string import ascii_uppercase

from .choices import chosen, is_option, option_index
from .extraction import after_thinking, answers, is_hostile, reference_content
from .notation import plain_number, with_points
from .pool import SECONDS, configure, shared_pool
from .references import Reading, describe_reference
from .worker import Job, Verdict

__all__ = [
    "GRADERS", "SECONDS", "Reading", "Verdict", "configure", "describe_reference", "grade", "is_option",
    "option_index", "reference_content", "with_points",
]  # fmt: skip

GRADERS = ("math", "choice")


def grade(
    grader: str,
    texts: Sequence[str],
    golds: Sequence[object],
    *,
    options: Sequence[Sequence[str]] | None = None,
    votes: bool = False,
    unboxed: bool = False,
    budget: float | None = None,
    advance: Callable[[int], object] = lambda count: None,
) -> list[Verdict]:
    r"""Grade N answers.

    Args:
        grader: "math" or "choice".
        texts: N complete outputs of a model; what stands before the end of its thinking, such as
            `</think>`, is no answer.
        golds: N references. For "math" any LaTeX text, with or without `\boxed{}`; for "choice" a
            letter, an index from 0, or an option's text.
        options: For "choice", the texts of the options of each question, N sequences.
        votes: Fill `Verdict.answer`.
        unboxed: For "math", look for a final answer in texts without a `\boxed{}`. Otherwise they
            are wrong.
        budget: Seconds for the whole batch, with waiting for other threads that grade; None: no
            limit.
        advance: Called with the number of answers graded since the last call.

    Raises:
        ValueError: The numbers of texts, references and options differ.
    """
    if grader not in GRADERS:
        raise ValueError(f"No grader named {grader!r}. Use one of {', '.join(GRADERS)}.")
    rows = options or () if grader == "choice" else golds
    if not len(texts) == len(golds) == len(rows):
        raise ValueError(
            f"{len(texts)} answers have {len(golds)} references and options of {len(rows)} questions."
            " Give one of each for every answer."
        )
    texts = [after_thinking(text) for text in texts]
    if grader == "choice":
        advance(len(texts))
        return [_choose(*row) for row in zip(texts, golds, options or (), strict=True)]
    found = [_at_once(*row, votes, unboxed) for row in zip(texts, golds, strict=True)]
    rows_of = Counter(each for each in found if isinstance(each, Job))
    advance(len(found) - rows_of.total())
    verdicts = shared_pool().run(rows_of, budget, lambda job: advance(rows_of[job]))
    return [verdicts[each] if isinstance(each, Job) else each for each in found]


def _choose(text: str, gold: object, options: Sequence[str]) -> Verdict:
    expected, index = option_index(gold, options), chosen(text, options)
    if expected is None:
        return Verdict(None, reason="gold")
    return Verdict(index == expected, None if index is None else ascii_uppercase[index])


def _at_once(text: str, gold: object, votes: bool, unboxed: bool) -> Verdict | Job:
    """Return the verdict where no mathematics is needed, else the job for a worker."""
    reference, found = reference_content(gold), answers(text, unboxed)
    if not reference:
        return Verdict(None, reason="gold")
    if not found or any(is_hostile(answer, reference) for answer in found):
        return Verdict(False)
    if found == (reference,):
        return Verdict(True, reference)
    value, *values = [plain_number(each) for each in (reference, *found)]
    if len(found) > 1 or None in (value, *values):
        return Job(reference, found, votes)
    return Verdict(value == values[0], reference if value == values[0] else str(values[0]))
