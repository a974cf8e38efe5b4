"""Grade answers: by mathematics, or by the option that they choose.

No answer can hang or crash the caller, and `grade` raises for no text. What needs mathematics goes
to processes that can be killed (`pool.py`). Equal text, plain numbers and missing boxes are decided
here, and equal answers to a reference only once.
"""

from collections.abc import Callable, Sequence
from functools import partial
from string import ascii_uppercase
from typing import Any

from .choices import chosen
from .choices import is_option as is_option
from .choices import option_index as option_index
from .extraction import after_thinking, answers, is_hostile
from .extraction import reference_content as reference_content
from .notation import plain_number
from .notation import with_points as with_points
from .pool import SECONDS as SECONDS
from .pool import configure as configure
from .pool import shared_pool
from .references import Reading as Reading
from .references import describe_reference as describe_reference
from .worker import Job, Verdict

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
        advance: Called with N when all are graded.

    Raises:
        ValueError: The numbers of texts, references and options differ.
    """
    if grader not in GRADERS:
        raise ValueError(f"No grader named {grader!r}. Use one of {GRADERS}.")
    columns = [
        [*map(after_thinking, texts)],
        golds,
        *([options or ()] if grader == "choice" else []),
    ]
    if len({*map(len, columns)}) > 1:
        raise ValueError(
            f"The numbers of answers, references and options differ: {[*map(len, columns)]}. Give one"
            " of each for every answer."
        )
    decide: Any = _choose if grader == "choice" else partial(_at_once, votes, unboxed)
    found = [*map(decide, *columns)]
    # the rollouts of a prompt often hold the same answer
    verdicts = shared_pool().run({each: 1 for each in found if isinstance(each, Job)}, budget)
    advance(len(found))
    return [verdicts[each] if isinstance(each, Job) else each for each in found]


def _choose(text: str, gold: object, options: Sequence[str]) -> Verdict:
    expected, index = option_index(gold, options), chosen(text, options)
    if expected is None:
        return Verdict(None, reason="gold")
    return Verdict(index == expected, None if index is None else ascii_uppercase[index])


def _at_once(votes: bool, unboxed: bool, text: str, gold: object) -> Verdict | Job:
    """Return the verdict where no mathematics is needed, else the job for a worker."""
    reference, found = reference_content(gold), answers(text, unboxed)
    if not reference:
        return Verdict(None, reason="gold")
    if not found or any(is_hostile(answer, reference) for answer in found):
        return Verdict(False)
    if found == (reference,):
        return Verdict(True, reference)
    gold, answer = plain_number(reference), plain_number(found[0])
    if len(found) > 1 or gold is None or answer is None:
        return Job(reference, found, votes)
    return Verdict(gold == answer, reference if gold == answer else f"{float(answer):.15g}")
