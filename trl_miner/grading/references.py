"""How a reference is read: what a preview of a data set shows, and what no answer could match."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from .choices import option_index
from .extraction import reference_content
from .pool import shared_pool
from .worker import Job

_DICTIONARY = re.compile(r"\s*\{\s*(['\"]).*?\1\s*:", re.DOTALL)
# a decimal comma, or a list of numbers: the grader reads a list
_COMMA = re.compile(r"[^\d({\[\\]*(?:\d+(?:[.\s]\d{3})*,\d{1,2}|0,\d+)[^\d)}\]]*")
_NAME = re.compile(r"[^\d\\=<>{}\[\]\n]{1,60}")
_NAME_WORDS = 4  # a text of more is a sentence


class Reading(NamedTuple):
    """How a reference is read.

    Attributes:
        shown: What it is read as, as short text.
        answer: What a right answer holds.
        fault: Why hardly any answer can match it: "comma", "sentence", "words", "dictionary",
            "option" or "empty"; "": nothing is wrong.
    """

    shown: str
    answer: str
    fault: str


def describe_reference(gold: object, options: Sequence[str] | None = None) -> Reading:
    """Return how a reference is read: as one of `options`, or as mathematics without them.

    >>> describe_reference("15,50 €")
    Reading(shown='{15, 50}', answer='15,50 €', fault='comma')
    """
    if options is not None:
        index = option_index(gold, options)
        shown = "no option" if index is None else options[index]
        return Reading(shown, shown, "option" if index is None else "")
    text, content = str(gold or ""), reference_content(gold)
    job = Job(content, (), True)
    is_value, shown, _ = shared_pool().run([job])[job]
    return Reading(shown or "nothing", content, _fault(text, content, shown or "", is_value))


def _fault(text: str, content: str, shown: str, is_value: bool | None) -> str:
    if not text.strip():
        return "empty"
    if _DICTIONARY.match(text):
        return "dictionary"
    if is_value:
        return "comma" if _COMMA.fullmatch(content) else ""
    is_worked = "\\boxed" not in text and ("\n" in text or "####" in text)
    if is_worked or len(shown.split()) > _NAME_WORDS:
        return "sentence"
    return "" if _NAME.fullmatch(shown) else "words"
