"""How golds are read: whether an answer other than the same words can match them.

That a gold equals itself says nothing: whatever it is read as equals itself.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..grading.choices import option_index
from ..grading.math_answers import gold_content
from ..grading.references import describe_reference
from .columns import ascii_uppercase, text

# several numbers, or one with a decimal comma; of 0,125 the reading is 125
_COMMA = re.compile(r"[^\d({\[\\]*(?:\d+(?:[.\s]\d{3})*,\d{1,2}|0,\d+)[^\d)}\]]*")
_NAME = re.compile(r"[^\d\\=<>{}\[\]]{1,60}")
_LETTER = re.compile(r"\(?[A-J]\)?\.?")


@dataclass(frozen=True)
class Reference:
    """A gold as the verifier reads it.

    Attributes:
        shown: What it is read as, in words.
        fault: Why hardly any answer can match it: "comma", "sentence", "dictionary", "words" or
            "option"; empty: nothing is wrong.
        answer: What a right answer holds: the value, or the gold itself.
    """

    shown: str
    fault: str = ""
    answer: str = ""


def read_reference(gold: Any, options: Sequence[str] | None = None) -> Reference:
    """Return how a gold is read: as one of `options`, or as mathematics without them.

    >>> read_reference("15,50 €").shown
    '{15, 50} (list)'
    """
    if options is not None:
        index = option_index(gold, options)
        if index is None:
            return Reference(f"none of {len(options)} options", "option")
        return Reference(f"{ascii_uppercase[index]}: {options[index]}")
    given = text(gold)
    try:
        reading = describe_reference(given)
    except ValueError:
        return Reference("a dictionary", "dictionary")
    shown = f"{reading.value} ({reading.kind})"
    is_worked = "\\boxed" not in given and ("\n" in given or "####" in given)
    if reading.kind == "sentence" or (reading.is_text and is_worked):
        return Reference(shown, "sentence")
    if reading.kind in ("list", "set", "number") and _COMMA.fullmatch(gold_content(given)):
        return Reference(shown, "comma")
    # a name may be given in other case and markup; with a number in it, it is hardly one
    is_name = _NAME.fullmatch(reading.value)
    if reading.kind == "unreadable" or (reading.is_text and not is_name):
        return Reference(shown if reading.value else "nothing", "words")
    return Reference(shown, answer=reading.value if reading.kind == "number" else given)


def is_letter(gold: Any) -> bool:
    """Return whether a gold may be the letter of an option."""
    return bool(_LETTER.fullmatch(text(gold)))
