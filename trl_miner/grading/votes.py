"""One form for equal answers, so that they can be counted as one vote.

A name does not count (`x = 3` and `3`), nor does the notation of a number (`50\\%` and `0.5`), nor
the order of a set.
"""

from fractions import Fraction

import mpmath

from . import evaluation, values, words
from .evaluation import NoValue, TooLarge
from .parsing import Node, readings, symbols
from .showing import show

MAX_CHARACTERS = 200
_DIGITS = 15
_BITS = 200  # of a number that is shown in full


def form(answer: str) -> str | None:
    """Return the form of the content of a box; None for one without any."""
    nodes = readings(answer)
    text = words.flat(answer)
    node = nodes[0] if nodes else words.meaning(text)
    shown = text.casefold() if node is None else _form(node)
    return shown[:MAX_CHARACTERS] or None


def _form(node: Node) -> str:
    if node[0] == "given":
        return _form(node[1])
    several = values.normal(node)
    if isinstance(several, values.Several):
        forms = [_form(item) for item in several.items]
        if several.kind in ("set", "list"):
            return "{" + ", ".join(sorted(forms)) + "}"
        brackets = several.kind if len(several.kind) == 2 else "()"
        return brackets[0] + ", ".join(forms) + brackets[1]
    equation = values.equation(several)
    if equation is not None:
        return _form(equation[1])
    if several[0] in values.EXPRESSIONS:
        return _form_of_expression(several)
    return show(several)


def _form_of_expression(node: Node) -> str:
    node = values.without_unit(node)
    if symbols(node):
        from .symbolic import expanded

        return expanded(node) or show(node)
    try:
        value = evaluation.evaluate(node)
    except (NoValue, TooLarge):
        return show(node)
    if isinstance(value, Fraction):
        is_short = max(value.numerator.bit_length(), value.denominator.bit_length()) < _BITS
        return str(value) if is_short else show(node)
    return str(mpmath.nstr(value, _DIGITS)).removesuffix(".0")
