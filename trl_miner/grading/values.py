r"""Whether two parsed answers are equal. math-verify compares; the rules here say what, and how
closely.

math-verify alone finds `2^\infty` equal to 1/2, -100 or pi, now and then, and `10^{-20}` equal to
any other tiny number: sympy deduces what it likes from an infinity, and differences below 1e-15 are
cut off. Imports sympy, so only the workers import this module.
"""

from collections.abc import Sequence
from typing import Any

import sympy
from sympy.calculus.accumulationbounds import AccumBounds
from sympy.concrete.expr_with_limits import ExprWithLimits

# math-verify rounds to six decimals. This is for numbers of which six decimals say nothing.
RELATIVE_TOLERANCE = 1e-3
# From here on floats lack the digits that tell 2^100 from 2^100 + 1: exact numbers are compared
# exactly.
_LARGE = 10**9
_INFINITIES = (sympy.oo, -sympy.oo)
_INEQUALITIES = (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)


def are_equal(gold: Any, answer: Any) -> bool:
    """Return whether an answer, an expression of sympy or a text, equals a gold."""
    from math_verify import verify

    if isinstance(gold, str) or isinstance(answer, str) or gold == answer:
        return bool(gold == answer != "")
    gold, answer = _ranges(_canonical(gold), _canonical(answer))
    if gold in _INFINITIES:
        return (answer.rhs if isinstance(answer, sympy.Eq) else answer).doit() == gold
    if not (is_finite(gold) and is_finite(answer)) or _is_false(answer):
        return False
    if _names_several(gold) != _names_several(answer) and not (
        gold.has(sympy.Eq) and answer.has(sympy.Eq)
    ):
        gold, answer = _in_order(gold), _in_order(answer)
    return (
        verify([gold], [answer], timeout_seconds=None) and _are_near(gold, answer)
    ) or _agree_in_six_decimals(gold, answer)


def _canonical(expression: Any) -> Any:
    """Turn 17 = n into n = 17, and make one of the two kinds of symbols that math-verify reads; i
    is imaginary."""
    if isinstance(expression, sympy.Eq):
        left, right = expression.args
        if _is_number(left) and not _is_number(right):
            left, right = right, left
        return sympy.Eq(_with_one_kind(left), _with_one_kind(right), evaluate=False)
    return _with_one_kind(expression)


def _with_one_kind(expression: Any) -> Any:
    symbols = {
        symbol: sympy.I if symbol.name == "i" else sympy.Symbol(symbol.name, real=True)
        for symbol in getattr(expression, "free_symbols", ())
        if symbol.name == "i" or not symbol.is_real
    }
    return expression.xreplace(symbols) if symbols else expression


def _is_number(expression: Any) -> bool:
    return getattr(expression, "is_number", False) is True


def _ranges(gold: Any, answer: Any) -> tuple[Any, Any]:
    """Return the ranges that inequalities in one variable describe, where the other side is one
    too, or a set."""
    is_relation = _is_inequality(gold), _is_inequality(answer)
    is_set = isinstance(gold, sympy.Set), isinstance(answer, sympy.Set)
    if is_relation == (True, True):
        has_ranges = gold.free_symbols == answer.free_symbols
    else:
        has_ranges = is_relation[0] and is_set[1] or is_relation[1] and is_set[0]
    if not has_ranges:
        return gold, answer
    try:
        return solution_set(gold), solution_set(answer)
    except NotImplementedError:
        return gold, answer


def _is_inequality(expression: Any) -> bool:
    parts = expression.args if isinstance(expression, sympy.And) else (expression,)
    return (
        all(isinstance(part, (*_INEQUALITIES, sympy.Ne)) for part in parts)
        and len(expression.free_symbols) == 1
    )


def solution_set(expression: Any) -> Any:
    """Return the set of real numbers that an inequality, or a chain of them, allows; a set is its
    own."""
    if isinstance(expression, sympy.Set):
        return expression
    parts = expression.args if isinstance(expression, sympy.And) else (expression,)
    return sympy.Intersection(*(_with_one_kind(part).doit().as_set() for part in parts))


def _names_several(answer: Any) -> bool:
    """Return whether an answer gives values to several unknowns, as in x = 2, y = -2; x_1 and x_2
    count as one."""
    if not (
        isinstance(answer, sympy.FiniteSet) and all(isinstance(part, sympy.Eq) for part in answer)
    ):
        return False
    return len({str(part.lhs).partition("_")[0] for part in answer}) > 1


def _in_order(expression: Any) -> Any:
    r"""Return the tuple (2, -2) of x = 2, y = -2, and of 2, -2 as they are written; of y = -2, x =
    2 as x, y, z are ordered, since no order of the other unknowns is certain."""
    if not isinstance(expression, sympy.FiniteSet):
        return expression
    parts = getattr(expression, "_unsorted_args", expression.args)
    if all(isinstance(part, sympy.Eq) and str(part.lhs) in ("x", "y", "z") for part in parts):
        parts = sorted(parts, key=lambda part: str(part.lhs))
    return sympy.Tuple(*(getattr(part, "rhs", part) for part in parts))


def _agree_in_six_decimals(gold: Any, answer: Any) -> bool:
    """Extend math-verify's tolerance from a decimal to an expression that contains one."""
    if not (_is_number(gold) and _is_number(answer)):
        return False
    return bool(abs(gold.evalf() - answer.evalf()) < 5e-7) and _are_near(gold, answer)


def without_lost_infinity(parsed: Sequence[Any]) -> list[Any]:
    r"""Leave out expressions in which sympy has already computed with an infinity of the text, as
    in `e^{-\infty}`."""
    infinite = any(isinstance(part, str) and "\\infty" in part for part in parsed)
    return [
        part for part in parsed if isinstance(part, str) or not infinite or part.has(*_INFINITIES)
    ]


def is_finite(expression: Any) -> bool:
    """Return whether all numbers in an expression have a finite value; only ranges may end at an
    infinity.

    Infinities, indeterminate forms, poles and limits that do not exist have none.
    """
    if isinstance(expression, (sympy.Interval, *_INEQUALITIES)):
        ends = expression.args[:2]
        return all(end in _INFINITIES or is_finite(end) for end in ends)
    if isinstance(expression, (sympy.Set, sympy.Tuple, sympy.Eq, sympy.Ne, sympy.And, sympy.Or)):
        return all(map(is_finite, expression.args))
    if not isinstance(expression, sympy.Basic):
        return True
    return _is_written_finite(expression) and not expression.doit().has(
        *_INFINITIES, sympy.zoo, sympy.nan, AccumBounds
    )


def _is_written_finite(expression: sympy.Basic) -> bool:
    """Return whether an expression contains neither an infinity, except as a bound, nor 0^0."""
    if expression in _INFINITIES:
        return False
    if isinstance(expression, sympy.Pow) and all(
        _is_zero(part) for part in reversed(expression.args)
    ):
        return False
    bounded = isinstance(expression, (ExprWithLimits, sympy.Limit))
    return all(map(_is_written_finite, expression.args[:1] if bounded else expression.args))


def _is_zero(expression: sympy.Basic) -> bool:
    return getattr(expression.doit(), "is_zero", False) is True


def _is_false(answer: Any) -> bool:
    """Return whether an answer equates numbers that differ, such as 1 = 5 or x = 1 = 5; rounding is
    no difference."""
    relations = answer.args if isinstance(answer, sympy.And) else (answer,)
    return any(
        isinstance(relation, sympy.Eq)
        and not _are_near(
            relation.lhs, relation.rhs, 0.1 if relation.has(sympy.Float) else RELATIVE_TOLERANCE
        )
        for relation in relations
    )


def _are_near(first: Any, second: Any, tolerance: float = RELATIVE_TOLERANCE) -> bool:
    """Return False for two numbers that differ by more than the tolerance."""
    if not (getattr(first, "is_number", False) and getattr(second, "is_number", False)):
        return True
    first, second = first.doit(), second.doit()
    if first.is_Rational and second.is_Rational and abs(first) >= _LARGE:
        tolerance = 0
    else:
        first, second = first.evalf(), second.evalf()
    # math-verify takes 5% for both 5 and 0.05.
    return any(
        abs(first - scale * second) <= tolerance * max(abs(first), abs(scale * second))
        for scale in (1, 100, sympy.Rational(1, 100))
    )
