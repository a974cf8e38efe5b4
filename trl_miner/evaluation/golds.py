"""Can the grader work with a gold? A verifier that refuses the gold itself would score every answer wrong, or none."""

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..grading import grade
from ..progress import Progress

if TYPE_CHECKING:
    from .benchmarks import Problem

# Any plain number: against it, the verdict on most golds, which are integers, needs no mathematics.
_OTHER_ANSWER = "\\boxed{-7919}"
_SHOWN = 5


def accepts_gold(grader: str, problems: Sequence["Problem"], title: str = "checking golds") -> list[bool]:
    """Whether the grader accepts the gold of each problem as its own answer.

    For "math" it must also reach a verdict on some other number: the gold itself is recognized without mathematics,
    even one that takes for ever to work out (9^{9^{9^9}}), against which no other form could be judged.

    For "choice" the letter alone or the letter and the text must do: where an option's text is another's letter, as
    with blood groups, the letter alone is ambiguous.
    """
    with Progress(title, 2 * len(problems), unit="answers", leave=False) as progress:
        return _accepts_gold(grader, problems, progress.advance)


def _accepts_gold(grader: str, problems: Sequence["Problem"], advance: Callable[[int], None]) -> list[bool]:
    golds = [problem.solution for problem in problems]
    if grader == "math":
        own = grade("math", [f"\\boxed{{{gold}}}" for gold in golds], golds, advance=advance)
        other = grade("math", [_OTHER_ANSWER] * len(golds), golds, advance=advance)
        return [mine.score == 1.0 and its.score is not None for mine, its in zip(own, other, strict=True)]
    options = [problem.options for problem in problems]
    texts = [texts[ord(gold) - ord("A")] for texts, gold in zip(options, golds, strict=True)]
    short = grade("choice", [f"The answer is {gold}." for gold in golds], golds, options=options, advance=advance)
    full = [f"The answer is ({gold}) {text}." for gold, text in zip(golds, texts, strict=True)]
    long = grade("choice", full, golds, options=options, advance=advance)
    return [1.0 in (by_letter.score, by_both.score) for by_letter, by_both in zip(short, long, strict=True)]


def check_golds(title: str, grader: str, problems: Sequence["Problem"], *, strict: bool) -> None:
    """Refuse, or warn of, golds that the grader does not accept.

    Args:
        title: What to call the benchmark.
        grader: "math" or "choice".
        problems: Its problems.
        strict: Refuse; False: warn.

    Raises:
        ValueError: With `strict`, naming the first few.
    """
    accepted = accepts_gold(grader, problems, f"checking golds of {title}")
    refused = [index for index, is_accepted in enumerate(accepted) if not is_accepted]
    if not refused:
        return
    shown = "; ".join(f"problem {i} (id {problems[i].id}): {problems[i].solution!r}" for i in refused[:_SHOWN])
    message = (
        f"The grader {grader!r} must accept every gold of {title} as its own answer: it does not accept "
        f"{len(refused)} of {len(problems)}, {shown}."
    )
    if strict:
        raise ValueError(
            f"{message} Correct them, or pass --skip-bad-golds (strict=False in Python), which counts them as "
            f"never solved."
        )
    warnings.warn(f"{message} They count as never solved.", stacklevel=4)
