"""Check golds: a grader that rejects the gold itself would count every answer as wrong, or grade none."""

import warnings
from collections.abc import Sequence

from ..grading import grade
from ..progress import Progress
from .problems import Problem

# A plain integer: against it most golds, which are integers too, are graded without mathematics.
_OTHER_ANSWER = "\\boxed{-7919}"


def accepts_gold(grader: str, problems: Sequence[Problem], title: str = "checking golds") -> list[bool]:
    """Return for each problem whether the grader accepts its gold as an answer.

    For "math" and "task" the grader must also reach a verdict on some other number. In mathematics the gold itself is
    recognized as text, even one that takes forever to evaluate (9^{9^{9^9}}), and against such a gold no other form of
    an answer could be graded.

    For "choice" either the letter alone or the letter with the text must be accepted: where the text of an option is
    the letter of another, as with blood groups, the letter alone is ambiguous.
    """
    golds = [problem.solution for problem in problems]
    options = [problem.options for problem in problems] if grader == "choice" else None
    if grader == "task":
        first, second = [f"<answer>{gold}</answer>" for gold in golds], [_OTHER_ANSWER] * len(golds)
        golds = [problem.task for problem in problems]
    elif options is None:
        first, second = [f"\\boxed{{{gold}}}" for gold in golds], [_OTHER_ANSWER] * len(golds)
    else:
        texts = [texts[ord(gold) - ord("A")] for texts, gold in zip(options, golds, strict=True)]
        first = [f"The answer is {gold}." for gold in golds]
        second = [f"The answer is ({gold}) {text}." for gold, text in zip(golds, texts, strict=True)]
    with Progress(title, 2 * len(problems), unit="answers", leave=False) as progress:
        pairs = zip(
            *(grade(grader, answers, golds, options=options, advance=progress.advance) for answers in (first, second)),
            strict=True,
        )
    if options is None:
        return [own.is_correct is True and other.is_correct is not None for own, other in pairs]
    return [True in (letter.is_correct, both.is_correct) for letter, both in pairs]


def check_golds(title: str, grader: str, problems: Sequence[Problem], *, strict: bool) -> None:
    """Raise, or without `strict` warn, if the grader rejects golds; the message names the first few."""
    accepted = accepts_gold(grader, problems, f"checking golds of {title}")
    rejected = [index for index, is_accepted in enumerate(accepted) if not is_accepted]
    if not rejected:
        return
    shown = "; ".join(f"problem {i} (id {problems[i].id}): {problems[i].solution!r}" for i in rejected[:5])
    message = (
        f"The grader {grader!r} must accept every gold of {title} as its own answer: it does not accept "
        f"{len(rejected)} of {len(problems)}, {shown}."
    )
    if strict:
        raise ValueError(
            f"{message} Correct them, or pass --skip-bad-golds (strict=False in Python), which counts them as "
            f"never solved."
        )
    warnings.warn(f"{message} They count as never solved.", stacklevel=4)
