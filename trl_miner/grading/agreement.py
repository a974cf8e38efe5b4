"""Whether the content of a box agrees with a reference: the reference decides what it is read as.

First by its words, if it is an option, a time or a name; else as mathematics.
"""

import re
from functools import lru_cache
from typing import Any

from sympy import Expr

from . import units, words
from .forms import attempt, forms, number
from .notation import plain
from .reading import leaf, parts, readings

# The value of k is 2022; (D) 15
_SENTENCE = r"[A-Z][a-z]+ .*? (?:is|are) (\S*\d\S*)|\\text(?:bf)?\{\(([A-J])\)\}(?:\\ |\s)*(.+)"
_LEAD = (
    r"(?i)^(?:\\text\s*\{)?\s*(?:(?:the|so|thus|hence|therefore|there|it|we|get|have|is|are|equals?|answer|result|value|of"
    r"|a(?= total)|total|final|exactly|only|number|area|length|sum|probability|solutions?|roots?|maximum|minimum)\b"
    r"[\s:,]*)+\}?\s*(?=[-\d\\=(])"
)
_DECIMAL = r"(?=[-0.]*[1-9][\d.]{5})-?\d*\.(\d{6,})"  # of six digits, and of six decimals
_PERCENT = "\\%"


def agrees(reference: str, answer: str) -> bool:
    """Return whether the content of a box agrees with a reference; False where grading fails.

    There is no time limit.
    """
    said = re.fullmatch(_SENTENCE, reference)
    golds = [each for each in said.groups() if each] if said else [reference]
    return any(attempt(_agrees, False, plain(gold), plain(answer)) for gold in golds)


def _agrees(gold: str, answer: str) -> bool:
    flat, said = words.flat(gold), words.flat(answer)
    verdict = True if gold == answer else words.verdict(flat, said)
    if verdict is not None:
        return verdict
    answer = re.sub(_LEAD, "", answer).lstrip("= ")
    (gold, unit), (answer, other) = units.split_unit(gold), units.split_unit(answer)
    if re.search(r"[^\W\d_]{3}", words.flat(gold)) and not re.search(r"\\(?!text)|[=<>^]", gold):
        return words.names(flat) == words.names(said) or _same_values(gold, answer, 1)
    if not readings(gold):
        return said in (flat, flat.partition("_")[0])  # 1010, for 1010_2
    return _same_values(gold, answer, units.factor(unit, other))


def _same_values(gold: str, answer: str, scale: Any) -> bool:
    """Return whether two texts mean the same, the second one in a unit of so many of the first."""
    if answer.endswith(_PERCENT):
        gold, answer = answer, gold
    if gold.endswith(_PERCENT):  # 25 % is 0.25, and 25
        share, is_both = gold.removesuffix(_PERCENT), answer.endswith(_PERCENT)
        is_number = is_both or not re.match(r"-?0?\.", share)
        if is_number and _same_values(share, answer.removesuffix(_PERCENT), 1):
            return True
        return not is_both and _same_values(rf"\frac{{{share}}}{{100}}", answer, 1)
    # what the parser does not know, such as an event, has a value
    found = readings(answer) or readings(parts(answer, "=")[-1])
    for name, a in readings(gold) if scale else []:
        for other, b in found:
            b = b * scale if isinstance(b, Expr) else b
            if ("" in (name, other) or name == other) and {*forms(a)} & {*forms(b)}:
                return True
    return _rounds_to(gold, answer) or _rounds_to(answer, gold)


def _rounds_to(decimal: str, exact: str) -> bool:
    """Return whether a long decimal is what an exact value rounds to."""
    match = re.fullmatch(_DECIMAL, decimal)
    if match is None or re.fullmatch(_DECIMAL, exact):
        return False
    difference = abs(number(leaf(decimal) - leaf(exact), 30))
    return bool(difference * 2 * 10 ** len(match[1]) <= 1.0001)


@lru_cache(maxsize=256)
def form(answer: str) -> tuple[bool, str | None]:
    """Return whether an answer is mathematics, and one text for equal ones; None without content.

    A name does not count (`x = 3` and `3`), nor a unit, or the order of a list.
    """
    text = plain(answer)
    value, _ = units.split_unit(text)
    found = attempt(lambda: [forms(tree, 15)[0] for _, tree in readings(value)], [])
    shown = (
        re.sub(r"\.0+(?!\d)|(\.\d*?)0+(?!\d)", r"\1", found[0])
        if found
        else words.flat(text).casefold()
    )
    return bool(found), shown[:200] or None
