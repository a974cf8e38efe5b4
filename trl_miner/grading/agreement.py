"""Whether the content of a box agrees with a reference: the reference decides what it is read as.

First by its words, if it is an option, a time or a name; else as mathematics.
"""

import re
from itertools import product
from typing import Any

from sympy import Expr

from . import units, words
from .equality import same
from .expressions import number
from .notation import plain
from .reading import leaf, parts, readings

_SENTENCE = re.compile(r"[A-Z][a-z]+ .*? (?:is|are) (\S*\d\S*)")  # The value of k is 2022.
_OPTION = re.compile(r"\\text\s*\{\(([A-J])\)\}\s*(.+)")
_LEAD = re.compile(
    r"(?:\\text\s*\{)?\s*(?:(?:the|so|thus|hence|therefore|there|it|we|get|have|is|are|equals?|answer|result|value|of"
    r"|a(?= total)|total|final|exactly|only|number|area|length|sum|probability|solutions?|roots?|maximum|minimum)\b"
    r"[\s:,]*)+\}?\s*(?=[-\d\\=(])",
    re.IGNORECASE,
)
_DECIMAL = re.compile(
    r"(?=[-0.]*[1-9][\d.]{5})-?\d*\.(\d{6,})"
)  # of six digits, and of six decimals


def agrees(reference: str, answer: str) -> bool:
    """Return whether the content of a box agrees with a reference; False where grading fails.

    There is no time limit.
    """
    sentence = _SENTENCE.fullmatch(reference)
    try:
        return _agrees(plain(sentence[1] if sentence else reference), plain(answer))
    except MemoryError:
        raise
    except Exception:  # sympy's errors have no common class
        return False


def is_value(reference: str) -> bool:
    """Return whether a reference is read as mathematics."""
    return bool(readings(units.split_unit(plain(reference))[0]))


def _agrees(gold: str, answer: str) -> bool:
    if gold == answer:
        return True
    flat, said = words.flat(gold), words.flat(answer)
    if (verdict := words.verdict(flat, said)) is not None:
        return verdict
    if option := _OPTION.fullmatch(gold):
        return words.option(said) == option[1] or _agrees(option[2], answer)
    answer = _LEAD.sub("", answer, count=1).lstrip("= ")
    (gold, unit), (answer, other) = units.split_unit(gold), units.split_unit(answer)
    if re.search(r"[^\W\d_]{3}", words.flat(gold)) and not re.search(r"\\(?!text)|[=<>^]", gold):
        return words.same_names(flat, said) or _same_values(gold, answer, 1)
    if not readings(gold):
        return said.replace(" ", "") in (flat.replace(" ", ""), flat.partition("_")[0])
    scale = units.factor(unit, other)
    return bool(scale) and _same_values(gold, answer, scale)


def _same_values(gold: str, answer: str, scale: Any) -> bool:
    """Return whether two texts may mean the same; 25 % is 0.25, and 25."""
    share, whole = sorted((gold, answer), key=lambda text: not text.endswith("\\%"))
    if share.endswith("\\%") and not whole.endswith("\\%"):
        share = share.removesuffix("\\%")
        is_large = not re.match(r"-?0?\.", share)
        return _same_values(rf"\frac{{{share}}}{{100}}", whole, 1) or (
            is_large and _same_values(share, whole, 1)
        )
    gold, answer = gold.removesuffix("\\%"), answer.removesuffix("\\%")
    if _rounds_to(gold, answer) or _rounds_to(answer, gold):
        return True
    # what the parser does not know, such as an event, has a value
    found = readings(answer) or readings(parts(answer, "=")[-1])
    for (name, a), (other, b) in product(readings(gold), found):
        is_named = "" in (name, other) or name == other
        if is_named and same(a, b * scale if scale != 1 and isinstance(b, Expr) else b):
            return True
    return False


def _rounds_to(decimal: str, exact: str) -> bool:
    """Return whether a long decimal is what an exact value rounds to."""
    match = _DECIMAL.fullmatch(decimal)
    if match is None or _DECIMAL.fullmatch(exact):
        return False
    values = [number(leaf(text)) for text in (decimal, exact)]
    return None not in values and bool(
        abs(values[0] - values[1]) * 2 * 10 ** len(match[1]) <= 1.0001
    )
