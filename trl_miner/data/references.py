"""How golds are read: whether an answer other than the same words can match them.

That a gold equals itself says nothing: whatever it is read as equals itself.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..grading.choices import option_index
from ..grading.math_answers import gold_content
from ..grading.references import describe_reference
from .columns import ascii_uppercase, text

# math-verify warns that it reads a gold without a time limit
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
NAME_WORDS = 4  # a name has no more; a sentence may be right in other words
_COMMAND = re.compile(r"\\[A-Za-z]+|[{}]")
_WORD = re.compile(r"[^\W\d_]{2,}")
# two numbers, or one with a decimal comma
_COMMA = re.compile(r"[^\d({\[\\]*\d+,\d{1,2}[^\d)}\]]*")
_NAME = re.compile(r"[^\d\\=<>{}\[\]]{1,60}")
_ZEROS = re.compile(r"(\d\.\d+?)0+\b")
_LETTER = re.compile(r"\(?[A-J]\)?\.?")


@dataclass(frozen=True)
class Reference:
    """A gold as the verifier reads it.

    Attributes:
        shown: What it is read as, in words.
        fault: Why hardly any answer can match it: "comma", "sentence", "dictionary", "words" or
            "option"; empty: nothing is wrong.
    """

    shown: str
    fault: str = ""


def read_reference(gold: Any, options: Sequence[str] | None = None) -> Reference:
    """Return how a gold is read: as one of `options`, or as mathematics without them.

    >>> read_reference("15,50 €")
    Reference(shown='{15, 50} (set)', fault='comma')
    """
    if options is not None:
        index = option_index(gold, options)
        if index is None:
            return Reference(f"none of {len(options)} options", "option")
        return Reference(f"{ascii_uppercase[index]}: {options[index]}")
    given = text(gold)
    content = gold_content(given)
    try:
        reading = describe_reference(given)
    except ValueError:
        return Reference("a dictionary", "dictionary")
    value = _ZEROS.sub(r"\1", reading.value)  # sympy shows fifteen digits of a decimal
    shown = f"{value} ({reading.kind})"
    is_worked = "\\boxed" not in given and ("\n" in given or "####" in given)
    if is_worked or len(_WORD.findall(_COMMAND.sub(" ", content))) > NAME_WORDS:
        return Reference(shown, "sentence")
    if reading.kind in ("set", "pair", "interval") and _COMMA.fullmatch(content):
        return Reference(shown, "comma")
    if reading.kind == "unreadable" or (reading.is_text and not _NAME.fullmatch(reading.value)):
        return Reference(shown if reading.value else "nothing", "words")
    return Reference(shown)


def is_letter(gold: Any) -> bool:
    """Return whether a gold may be the letter of an option."""
    return bool(_LETTER.fullmatch(text(gold)))
