r"""Which option of a multiple-choice question does an answer choose?

The rule follows arXiv 2601.04731: what comes after "The answer is", up to the first full stop, must match an option
exactly. Its published code accepts substrings, so that "not aspirin" counts for "aspirin"; here it is exact, after
case, blanks and markup are evened out. An option may be named by its letter, its text, or both:

    The answer is B.      The answer is: (B) aspirin.      **The answer is aspirin**      The answer is \boxed{B}
"""

import re
from collections.abc import Sequence
from string import ascii_uppercase

ANSWER = re.compile(r"the answer is(?!\w)", re.IGNORECASE)
_STOP = re.compile(r"\s*(?:$|\.(?=\s|$))")
_MARKUP = re.compile(r"\\(?:boxed|text|textbf|mathrm|mathbf)\s*(?=\{)|[*`$_{}\"“”‘’]|(?<!\w)'|'(?!\w)")
_LEAD = re.compile(r"[\s:,=]*(?:(?:the )?(?:option|choice)\s+)?", re.IGNORECASE)
# Longer than any option; what comes later is no part of the answer.
_MAX_CHARACTERS = 2_000


def chosen(text: str, options: Sequence[str]) -> int | None:
    """The index of the option that a text chooses, by its last "The answer is"; None if it chooses none, or several.

    Args:
        text: the model's whole output.
        options: the texts of the options A, B, C, ...
    """
    position = None
    for match in ANSWER.finditer(text):
        position = match.end()
    if position is None:
        return None
    lines = text[position : position + _MAX_CHARACTERS].lstrip(" \t\r\n:*`'\"").splitlines()
    answer = _even(_LEAD.sub("", _MARKUP.sub("", lines[0]), count=1)) if lines else ""
    found = _match(answer, options)
    if found is None:
        return None
    index, end = found
    # "A. B." or "A. ibuprofen", where A is aspirin, choose two.
    rest = _match(answer[end:].lstrip(". "), options)
    return index if rest is None or rest[0] == index else None


def option_index(gold: str, options: Sequence[str]) -> int | None:
    """The index of the gold, given as a letter or as the option's text; None if it is none of the options."""
    letter = gold.strip().upper()
    if len(letter) == 1 and letter in ascii_uppercase[: len(options)]:
        return ascii_uppercase.index(letter)
    same = [index for index, option in enumerate(options) if _even(option) == _even(gold)]
    return same[0] if len(same) == 1 else None


def _match(answer: str, options: Sequence[str]) -> tuple[int, int] | None:
    """The option that the answer's beginning names in full, and where that name ends; the longest name counts."""
    ends: dict[int, int] = {}
    for index, option in enumerate(options):
        letter, text = ascii_uppercase[index].casefold(), _even(option)
        names = [letter, f"({letter})", f"{letter})", text, f"{text} ({letter})"]
        names += [f"{mark} {text}" for mark in (letter, f"{letter}.", f"{letter}:", f"{letter})", f"({letter})")]
        for name in names:
            if name and answer.startswith(name) and _STOP.match(answer, len(name)):
                ends[index] = max(ends.get(index, 0), len(name))
    if not ends:
        return None
    longest = max(ends.values())
    named = [index for index, end in ends.items() if end == longest]
    return (named[0], longest) if len(named) == 1 else None


def _even(text: str) -> str:
    """Case, blanks, markup and the last full stop evened out."""
    return " ".join(_MARKUP.sub("", text).casefold().split()).rstrip(". ")
