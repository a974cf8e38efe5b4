"""Forms of a reading, as text: two readings are equal if they share one.

An expression is its digits at four points, a thousand of each, so that 1 - 2^{-2016} is not 1. A
list has a form with its order and one without; a pair is a point and an interval.

Nothing here is trusted to end; `worker.py` runs it in a process that can be killed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from sympy import Eq, Interval, Rational, S, Set

_POINTS = 4  # of which more than half must have a value


class Items(NamedTuple):
    """Several values: a "list", what stands in brackets, such as "(]", in "{}" without
    order, or a matrix, such as "2x3"."""

    kind: str
    items: list[Any]


def attempt(function: Callable[..., Any], default: Any, *values: Any) -> Any:
    """Call a function; return the default where it fails: sympy's errors have no common class."""
    try:
        return function(*values)
    except MemoryError:  # this ends the worker
        raise
    except Exception:
        return default


def forms(tree: Any, count: int = 1000) -> list[str]:
    """Return the forms of a reading, to so many digits, its main one first."""
    if isinstance(tree, Items):
        each = [forms(item, count)[0] for item in tree.items]
        start, end, unordered = tree.kind[0], tree.kind[-1], "{" + ", ".join(sorted(each)) + "}"
        if start == "{":
            return [unordered]
        if tree.kind == "list":
            return [unordered, "(" + ", ".join(each) + ")"]
        return [start + ", ".join(each) + end, *_interval(start, end, *tree.items)]
    if isinstance(tree, Set):
        return [str(tree.doit()).replace("Reals", "Interval(-oo, oo)")]
    if isinstance(tree, Eq) and tree.free_symbols:
        difference = tree.lhs - tree.rhs
        return ["0 = " + _digits(difference / difference.subs(_point(difference, 0)), count)]
    return [_digits(tree, count)]


def number(value: Any, count: int) -> Any:
    """Return a finite value to so many digits, None for none."""
    value = value.doit().evalf(count, maxn=2 * count, chop=not value.is_Rational)
    return value if value.is_number and value.is_finite else None


def _digits(value: Any, count: int) -> str:
    """Return the digits of an expression at the points; its own text where it has too few."""
    value = value.doit()
    points = [_point(value, trial) for trial in range(_POINTS if value.free_symbols else 1)]
    numbers = [number(value.subs(point), count + 20) for point in points]
    known = [str(each.n(count)) for each in numbers if each is not None]
    return " ".join(dict.fromkeys(known)) if len(known) * 2 > len(points) else str(value)


def _point(expression: Any, trial: int) -> dict[Any, Any]:
    """Return a value for each unknown, by its name; at the last point they are negative."""
    sign = (-1) ** (trial // 3)
    return {
        each: sign
        * Rational(int.from_bytes(each.name.encode()) % 89 + 7 * trial + 1, 11 + 3 * trial)
        for each in expression.free_symbols
    }


def _interval(start: str, end: str, *ends: Any) -> list[str]:
    """Return the form of the interval that brackets with two ends may be."""
    is_proper = len(ends) == 2 and (ends[0] < ends[1]) is S.true
    return [str(Interval(*ends, start == "(", end == ")"))] if is_proper else []
