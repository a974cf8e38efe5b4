r"""Training questions that are also in a benchmark: the same question, or 13 words in a row in common.

Only the questions are compared, without options and context:

- Text is NFKC-normalized and case-folded. LaTeX for layout (`$`, `\left`, `\text`, `\displaystyle`, ...) is
  dropped, and `\dfrac` counts as `\frac`; other commands are words by their name: `\sqrt{2}` is "sqrt 2".
- Exact: words, and the signs + - * / = < > ^ ! % as words of their own, are equal. Braces, blanks and punctuation do
  not count, so that "2+3" is "2 + 3" but not "2-3".
- 13-gram: 13 words in a row are equal; signs do not count, or every x^2+y^2+z^2 would match. Problems of fewer than 13
  words can only match exactly.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .problems import Problem

NGRAM = 13  # words

_LAYOUT = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|text(?:bf|it|rm|sf|tt)?|math(?:rm|bf|it|sf|tt|bb|cal|frak)|operatorname|mbox"
    r"|displaystyle|textstyle|limits|nolimits|quad|qquad|begin|end|hspace|vspace|phantom)(?![a-zA-Z])\*?"
    r"|\\[,;:!>\s()\[\]{}|\\]"
)
_FRACTION = re.compile(r"\\[dt]frac(?![a-zA-Z])")
_TIMES = re.compile(r"\\(?:times|cdot)(?![a-zA-Z])|[×·⋅]")
# A hyphen between letters joins words, as in "two-digit"; elsewhere it is a minus.
_HYPHEN = re.compile(r"(?<=[^\W\d_]{2})-(?=[^\W\d_]{2})")
_TOKEN = re.compile(r"[^\W_]+|[-+*/=<>^!%]")
_Common = tuple[str, tuple[str, ...]]  # the kind of an overlap, and the words


@dataclass(frozen=True)
class Overlap:
    """One training question that overlaps with one problem."""

    row: int  # index of the training question
    benchmark: str
    problem: str  # its id
    kind: str  # "exact" or "13-gram"
    words: str  # what they share: the whole question, or its first 13 words in common


def tokens(text: str) -> list[str]:
    """Return the words and signs of a text, normalized as described above."""
    text = unicodedata.normalize("NFKC", text).replace("−", "-")
    text = _LAYOUT.sub(" ", _TIMES.sub("*", _FRACTION.sub(r"\\frac", text)))
    return _TOKEN.findall(_HYPHEN.sub(" ", text.casefold()))


def find_overlaps(
    questions: Iterable[str], benchmarks: Mapping[str, Sequence[Problem]], n: int = NGRAM
) -> list[Overlap]:
    """Return all overlapping pairs, by row, then in the order of the benchmarks; "exact" where both kinds hold."""
    problems = [(name, problem) for name, members in benchmarks.items() for problem in members]
    known: dict[_Common, list[int]] = {}
    for index, (_, problem) in enumerate(problems):
        for common in {*_commons(problem.question, n)}:
            known.setdefault(common, []).append(index)
    overlaps: list[Overlap] = []
    for row, question in enumerate(questions):
        shared: dict[int, _Common] = {}
        for common in _commons(question, n):
            for index in known.get(common, ()):
                shared.setdefault(index, common)
        for index, (kind, words) in sorted(shared.items()):
            name, problem = problems[index]
            overlaps.append(Overlap(row, name, problem.id, kind, " ".join(words)))
    return overlaps


def _commons(question: str, n: int) -> Iterator[_Common]:
    """Yield what a question may have in common with another: all of it, then each n words in a row."""
    whole = tokens(question)
    if whole:
        yield "exact", tuple(whole)
    words = [token for token in whole if token.isalnum()]
    for start in range(len(words) - n + 1):
        yield f"{n}-gram", tuple(words[start : start + n])
