"""How a reference is read: what a preview of a data set shows, and what no answer could match."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from .choices import option_index
from .extraction import reference_content
from .pool import shared_pool
from .worker import Job

# a decimal comma, or a list of numbers: the grader reads a list
_COMMA = r"[^\d({\[\\]*(?:\d+(?:[.\s]\d{3})*,\d{1,2}|0,\d+)[^\d)}\]]*"


class Reading(NamedTuple):
    """How a reference is read.

    Attributes:
        shown: What it is read as, as short text.
        answer: What a correct answer holds.
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
        if index is None:
            return Reading("no option", "", "option")
        return Reading(options[index], options[index], "")
    content = reference_content(gold)
    job = Job(content, (), True)
    is_value, form, _ = shared_pool().run([job])[job]
    return Reading(form or "nothing", content, _fault(content, form or "", is_value))


def _fault(content: str, shown: str, is_value: bool | None) -> str:
    if not content:
        return "empty"
    if re.match(r"\s*\{\s*(['\"]).*?\1\s*:", content):
        return "dictionary"
    if is_value:
        return "comma" if re.fullmatch(_COMMA, content) else ""
    if re.search("\n|####", content) or len(shown.split()) > 4:
        return "sentence"
    return "" if re.fullmatch(r"[^\d\\=<>{}\[\]]{1,60}", shown) else "words"
