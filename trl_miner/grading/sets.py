r"""Sets of real numbers: `x > 1`, `(1, \infty)` and `\{x \mid x > 1\}` are one.

Imports sympy, which takes a second, so only what needs it imports this module.
"""

from collections.abc import Sequence
from typing import Any

import sympy

from . import symbolic
from .evaluation import digits_of
from .parsing import EXPRESSIONS, INFINITY, Node, nodes_in, symbols

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}
_DIGITS = 45  # in which ends must agree
# A set of sympy, and the variable that is said to be in it.
RealSet = tuple[Any, str | None]


def are_same_sets(gold: Node, answer: Node) -> bool:
    """Return whether two trees describe one set of real numbers, in the same variable if both name
    one."""
    first = real_set(gold)
    second = real_set(answer) if first is not None else None
    if first is None or second is None:
        return False
    return bool(first[0] == second[0]) and (None in (first[1], second[1]) or first[1] == second[1])


def real_set(node: Node) -> RealSet | None:
    """Return the set of real numbers that a tree describes; None if it describes none."""
    match node:
        case ("sequence", opening, closing, low, high):
            return _interval(low, high, opening == "[", closing == "]")
        case ("set", *items):
            ends = [*map(_end, items)]
            return None if None in ends else (sympy.FiniteSet(*ends), None)
        case ("numbers", "R"):
            return sympy.S.Reals, None
        case ("numbers", "R^+"):
            return sympy.Interval.open(0, sympy.oo), None
        case ("list", *items) if not any(item[0] == "relation" for item in items):
            return None
        case ("union" | "intersection" | "without" | "or" | "and" | "list" as kind, *items):
            return _combined(kind, items)
        case ("builder", variable, condition):
            inner = real_set(condition)
            return inner if inner is not None and inner[1] in (None, variable) else None
        case ("relation", (("symbol", name), domain), ("in",)):
            inner = real_set(domain)
            return None if inner is None else (inner[0], name)
        case ("relation", sides, signs) if {*signs} <= _FLIPPED.keys() and len(symbols(node)) == 1:
            (name,) = symbols(node)
            solved = [_solved(*each, name) for each in zip(sides, signs, sides[1:], strict=False)]
            return None if None in solved else (sympy.Intersection(*solved), name)
    return None


def _interval(low: Node, high: Node, has_low: bool, has_high: bool) -> RealSet | None:
    ends = _end(low), _end(high)
    is_end = (ends[0] != -sympy.oo or not has_low) and (ends[1] != sympy.oo or not has_high)
    if None in ends or ends[0] > ends[1] or not is_end:  # [1, oo] is no set of real numbers
        return None
    return sympy.Interval(*ends, not has_low, not has_high), None


def _end(node: Node) -> Any:
    """Return an end of an interval, rounded to some digits; None if it is none."""
    if node[0] not in EXPRESSIONS or symbols(node):
        return None
    if INFINITY in nodes_in(node):
        sign = symbolic.infinity(node)
        return sign * sympy.oo if sign else None
    digits = digits_of(node, _DIGITS)
    return None if digits is None else sympy.Rational(digits)


def _combined(kind: str, items: Sequence[Node]) -> RealSet | None:
    sets = [*map(real_set, items)]
    variables = {each[1] for each in sets if each is not None and each[1]}
    if None in sets or len(variables) > 1:
        return None
    variable = variables.pop() if variables else None
    inner = [each[0] for each in sets if each is not None]
    if kind == "without":
        return inner[0] - inner[1], variable
    whole = (sympy.Union if kind in ("union", "or") else sympy.Intersection)(*inner)
    if kind == "list" and whole is sympy.S.EmptySet:  # x < -1, x > 1
        whole = sympy.Union(*inner)
    return whole, variable


def _solved(left: Node, sign: str, right: Node, name: str) -> Any:
    """Return the set of solutions of an inequality in one variable."""
    if right == ("symbol", name):
        left, sign, right = right, _FLIPPED[sign], left
    if left == ("symbol", name):
        end = _end(right)
        if end is None:
            return None
        if sign == "!=":
            return sympy.S.Reals - sympy.FiniteSet(end)
        ends = (-sympy.oo, end) if sign[0] == "<" else (end, sympy.oo)
        is_open = len(sign) == 1
        return sympy.Interval(*ends, is_open, is_open)
    if left[0] not in EXPRESSIONS or right[0] not in EXPRESSIONS:
        return None
    solved = symbolic.solutions(left, sign, right)
    if solved is None:
        return None
    rounded = {end: sympy.Rational(str(end.evalf(_DIGITS))) for end in solved.boundary}
    return sympy.S.Reals & solved.xreplace(rounded)
