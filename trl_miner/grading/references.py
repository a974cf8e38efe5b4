"""How a reference is read: what a preview of a data set shows, and what no answer could match."""

import re
from dataclasses import dataclass

from . import math_answers, values, words
from .agreement import Text, read
from .showing import show

_SHOWN_CHARACTERS = 60
_DICTIONARY = re.compile(r"\s*\{\s*(?P<quote>['\"])[^\n]*?(?P=quote)\s*:")
_NAME_WORDS = 4  # a text of more is a sentence
_KINDS = {
    "relation": "equation", "or": "set", "and": "equations", "list": "list", "numbers": "set", "union": "set",
    "intersection": "set", "without": "set", "builder": "set", "point": "point", "given": "expression",
    "pieces": "function",
}  # fmt: skip


@dataclass(frozen=True)
class ReferenceReading:
    """How the verifier of mathematics reads a reference.

    Attributes:
        kind: "number", "expression", "equation", "inequality", "pair", "tuple", "interval", "set",
            "list", "matrix", "ratio", "time", "date", "option", "congruence", "name", "sentence"
            and so on; "unreadable" if nothing can be compared with it.
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

    >>> describe_reference("15,50 €")
    ReferenceReading(kind='list', value='{15, 50}', is_text=False)
    """
    if _DICTIONARY.match(text):
        raise ValueError(
            f"A reference must be an answer: got a dictionary, {text[:_SHOWN_CHARACTERS]!r}. Name"
            " the key that holds the answer."
        )
    content = math_answers.gold_content(text)
    text_read = read(content)
    if not content or not (text_read.flat or text_read.nodes):
        return ReferenceReading("unreadable", "", is_text=True)
    kind = _kind(text_read)
    is_text = kind in ("name", "sentence")
    value = show(text_read.nodes[0]) if text_read.nodes and not is_text else text_read.flat
    return ReferenceReading(kind, value[:_SHOWN_CHARACTERS], is_text)


def _kind(read: Text) -> str:
    if words.is_option(read.flat):
        return "option"
    if words.clock(read.flat) is not None:
        return "time"
    if words.is_date(read.flat):
        return "date"
    if not read.nodes:
        return "name" if len(read.flat.split()) <= _NAME_WORDS else "sentence"
    node = read.nodes[0]
    if node[0] == "relation" and "=" not in node[2]:
        return "inequality" if "in" not in node[2] else "set"
    if node[0] == "sequence":
        return {"()": "pair" if len(node) == 5 else "tuple"}.get(node[1] + node[2], "interval")
    if node[0] in values.EXPRESSIONS:
        return "number" if values.is_number(node) else "expression"
    return _KINDS.get(node[0], str(node[0]))
