"""How a reference is read: what a preview of a data set shows, and what no answer could match."""

import ast
from dataclasses import dataclass

from . import math_answers, notation

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class ReferenceReading:
    """How the verifier of mathematics reads a reference.

    Attributes:
        kind: "number", "expression", "equation", "pair", "set", "text" and so on; "unreadable" if
            nothing can be compared with it.
        value: The value that was read, as short text.
        is_text: Whether only an answer in the same words can be right.
    """

    kind: str
    value: str
    is_text: bool


def describe_reference(text: str) -> ReferenceReading:
    """Return how a reference is read, without grading anything.

    Raises:
        ValueError: The reference is the text of a dictionary, of which no answer is a copy.

    >>> describe_reference("15,50")
    ReferenceReading(kind='set', value='{15, 50}', is_text=False)
    """
    if _is_dictionary(text):
        raise ValueError(
            f"A reference must be an answer: got a dictionary, {text[:_SHOWN_CHARACTERS]!r}. Name"
            " the key that holds the answer."
        )
    parsed = math_answers._parse(notation.plain(math_answers.gold_content(text)))
    if not parsed:
        return ReferenceReading("unreadable", "", is_text=True)
    value = parsed[0]
    # math-verify reads a word as a symbol with that name
    if isinstance(value, str) or len(getattr(value, "name", "")) > 1:
        return ReferenceReading("text", str(value)[:_SHOWN_CHARACTERS], is_text=True)
    kind = {
        "FiniteSet": "set",
        "Tuple": "pair",
        "Interval": "interval",
        "Equality": "equation",
    }.get(type(value).__name__, "number" if getattr(value, "is_number", False) else "expression")
    return ReferenceReading(kind, str(value)[:_SHOWN_CHARACTERS], is_text=False)


def _is_dictionary(text: str) -> bool:
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}") and len(text) <= 10_000):
        return False
    try:
        return isinstance(ast.literal_eval(text), dict)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text[1:].lstrip().startswith(('"', "'"))
