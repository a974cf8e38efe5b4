r"""One form for equal answers, so that they can be counted as one vote.

A name does not count (`x = 3` and `3`), nor a unit, the notation of a number, or the order of a set.
"""

from typing import Any

import sympy

from .expressions import number
from .notation import plain
from .reading import Items, readings
from .units import split_unit
from .words import flat

_CHARACTERS, _DIGITS = 200, 15


def form(answer: str) -> str | None:
    """Return the form of an answer; None for one without any content."""
    text = plain(answer)
    found = readings(split_unit(text)[0])
    shown = show(found[0][1]) if found else flat(text).casefold()
    return shown[:_CHARACTERS] or None


def show(tree: Any) -> str:
    """Return a reading as short text, the same for equal ones."""
    if isinstance(tree, Items):
        start, end = tree.kind if len(tree.kind) == 2 else "{}"
        shown = map(show, tree.items)
        return start + ", ".join(sorted(shown) if start == "{" else shown) + end
    if not isinstance(tree, sympy.Expr):
        return str(tree)
    value = sympy.expand(tree.doit())
    digits = None if value.is_Rational or value.free_symbols else number(value)
    return str(value if digits is None else digits.n(_DIGITS))
