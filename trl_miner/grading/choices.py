r"""Which option of a multiple-choice question an answer chooses.

The rule follows arXiv 2601.04731: what comes after "The answer is", up to the first full stop, must
match an option exactly. Its published code accepts substrings, so that "not aspirin" counts for
"aspirin"; here it is exact, after case, blanks and markup are normalized. An option may be named by
its letter, its text, or both:

    The answer is B.      The answer is: (B) aspirin.      **The answer is B (aspirin)**
    Answer: [B]           The correct answer is aspirin    So it must be \boxed{B}.

The last such place counts. A box that names no option is a number on the way, and is passed over.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from string import ascii_uppercase
from typing import Any

from . import notation

ANSWER = re.compile(
    r"the (?:(?:correct|right|best|final|most likely) )*(?:answer|option|choice) is(?!\w)"
    r"|^\W*(?:(?:correct|final) )?answer\s*:"
    r"|(?P<box>\\f?boxed\s*(?=\{))",
    re.IGNORECASE | re.MULTILINE,
)
# in the line before a box, which then says no more than the line does
_DENIAL = re.compile(
    r"\b(?:not|never|cannot|wrong|incorrect|if|unless|or)\b|n['’]t\b", re.IGNORECASE
)
_STOP = r"\s*[,;!?]*(?:$|\.(?=\s|$))"
_MARKUP = re.compile(
    r"\\(?:f?boxed|text|textbf|mathrm|mathbf)\s*(?=\{)|\\[()]|[*`$_{}\"“”‘’]|(?<!\w)'|'(?!\w)"
)
_LEAD = re.compile(r"[\s:,=]*(?:(?:the )?(?:option|choice)\s+)?", re.IGNORECASE)
# Longer than any option; what comes later is not part of the answer.
_MAX_CHARACTERS = 2_000
_MAX_PLACES = 50  # an answer has a few; a hostile one may have thousands


def chosen(text: str, options: Sequence[str]) -> int | None:
    """Return the index of the option that a text chooses by its last "The answer is" or box."""
    boxed = None  # by a box behind the place, in words that do not let it count
    for match in reversed([*ANSWER.finditer(text)][-_MAX_PLACES:]):
        index = _chosen_at(text, match.end(), options)
        before = text[: match.start()].rpartition("\n")[2]
        if not match["box"] or not (
            index is None or _DENIAL.search(before) or ANSWER.search(before)
        ):
            return index if boxed in (None, index) else None
        boxed = boxed if index is None else index
    return None


def _chosen_at(text: str, position: int, options: Sequence[str]) -> int | None:
    """Return the index of the option that is named at a position of a text."""
    lines = text[position : position + _MAX_CHARACTERS].lstrip(" \t\r\n:*`'\"").splitlines()
    answer = _normalized(_LEAD.sub("", _MARKUP.sub("", lines[0]), count=1)) if lines else ""
    index, end = _named_first(answer, options)
    # "A. B." and "A. ibuprofen", where A is aspirin, choose two.
    second, _ = _named_first(answer[end:].lstrip(". "), options)
    return index if second in (None, index) else None


def option_index(gold: Any, options: Sequence[str], first: int = 0) -> int | None:
    """Return the index of a gold, from 0; None if it is none of the options.

    A number is the option's own, counted from `first`. A text is a letter, or else the text of one
    option, or else such a number, or else names an option as an answer does: `B) ibuprofen`.
    """
    if isinstance(gold, (int, float)) and not isinstance(gold, bool):
        return int(gold) - first if gold - first in range(len(options)) else None
    letter = _normalized(str(gold)).strip("()[]").upper()
    if len(letter) == 1 and letter in ascii_uppercase[: len(options)]:
        return ascii_uppercase.index(letter)
    same = [index for index, option in enumerate(options) if is_option(gold, option)]
    if not same and letter.isdecimal():
        return option_index(int(letter), options, first)
    if not same:
        return _chosen_at(str(gold), 0, options)
    return same[0] if len(same) == 1 else None


def is_option(gold: Any, option: str) -> bool:
    """Return whether a gold is the text of an option, in other case or markup."""
    return _normalized(option) == _normalized(str(gold))


def _named_first(answer: str, options: Sequence[str]) -> tuple[int | None, int]:
    """Return the option whose full name begins the answer (the longest name counts), and where that
    name ends."""
    ends = [
        max((match.end() for form in _forms(*each) if (match := form.match(answer))), default=0)
        for each in zip(ascii_uppercase, options, strict=False)
    ]
    longest = max(ends, default=0)
    return (ends.index(longest), longest) if longest and ends.count(longest) == 1 else (None, 0)


@lru_cache(maxsize=256)
def _forms(letter: str, option: str) -> list[re.Pattern[str]]:
    """Return what names an option: its letter, its text, or both."""
    a, text = letter.casefold(), re.escape(_normalized(option)) or "(?!)"
    names = (
        rf"{a}\)?|\({a}\)|\[{a}\]",
        rf"(?:(?:{a}(?:[.:,)]| -)?|\({a}\):?|\[{a}\]) )?{text}",
        rf"{text} \({a}\)",
        rf"(?:{a}|\[{a}\]) (?:\({text}\)|\[{text}\])",
    )
    return [re.compile(f"(?:{name})(?={_STOP})") for name in names]


def _normalized(text: str) -> str:
    """Return a text in one case and plain characters, without markup, repeated blanks and the last
    full stop."""
    return " ".join(_MARKUP.sub("", notation.characters(text)).casefold().split()).rstrip(". ")
