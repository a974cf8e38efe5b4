"""What sympy computes: infinite sums, integrals, limits, and the solutions of inequalities.

Imports sympy, which takes a second, so only what needs it imports this module.
"""

import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import wraps
from typing import Any, TypeVar

import sympy
from sympy.calculus.accumulationbounds import AccumBounds

from .parsing import Node

_FUNCTIONS = {
    "ln": sympy.log, "abs": sympy.Abs, "max": sympy.Max, "min": sympy.Min, "arcsin": sympy.asin, "arccos": sympy.acos,
    "arctan": sympy.atan, "arccot": sympy.acot, "Re": sympy.re, "Im": sympy.im,
}  # fmt: skip
_FUNCTIONS |= {name: getattr(sympy, name) for name in (
    "sin cos tan cot sec csc sinh cosh tanh coth log root floor ceiling factorial factorial2 binomial gcd lcm".split()
)}  # fmt: skip
_OPERATIONS = {
    "add": operator.add, "times": operator.mul, "over": operator.truediv, "power": operator.pow,
    "sum": sympy.Sum, "product": sympy.Product, "integral": sympy.Integral,
}  # fmt: skip
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infinity": sympy.oo}

Function = TypeVar("Function", bound=Callable[..., Any])


def _or_none(function: Function) -> Function:
    """Make a function return None where sympy fails, which it does in several ways."""

    @wraps(function)
    def attempt(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (NotImplementedError, ValueError, TypeError, AttributeError, KeyError):
            return None

    return attempt  # type: ignore[return-value]


def to_sympy(node: Node, point: Mapping[str, Fraction]) -> Any:
    """Return an expression of sympy; symbols are real, and those in `point` have a value.

    Raises:
        NotImplementedError: sympy has no such expression.
    """

    def convert(part: Node) -> Any:
        match part:
            case ("number", value, _):
                return sympy.Rational(value)
            case ("constant", name):
                return _CONSTANTS[name]
            case ("symbol", name):
                value = point.get(name)
                return sympy.Symbol(name, real=True) if value is None else sympy.Rational(value)
            case ("apply", name, argument):
                return convert(("symbol", name)) * convert(argument)
            case ("negative", inner):
                return -convert(inner)
            case ("add" | "times" | "over" | "power" as kind, a, b):
                return _OPERATIONS[kind](convert(a), convert(b))
            case ("call", "determinant", ("matrix", *rows)):
                return sympy.Matrix([[*map(convert, row)] for row in rows]).det()
            case ("call", name, *arguments) if name in _FUNCTIONS:
                return _FUNCTIONS[name](*map(convert, arguments))
            case ("sum" | "product" | "integral" | "limit" as kind, name, *ends, body):
                free = {other: value for other, value in point.items() if other != name}
                inside, bounds = (
                    to_sympy(body, free),
                    (convert(("symbol", name)), *map(convert, ends)),
                )
                variable = sympy.Symbol(name, real=True)
                if kind != "limit":
                    return _OPERATIONS[kind](inside, (variable, *bounds[1:]))
                # from both sides, where there are two
                sides = ["+-"] * (bounds[1] not in (sympy.oo, -sympy.oo))
                return sympy.Limit(inside, variable, bounds[1], *sides)
        raise NotImplementedError(part[0])

    return convert(node)


@_or_none
def finite_value(
    node: Node, point: Mapping[str, Fraction], digits: int
) -> Fraction | tuple[str, str] | None:
    """Return the value of a sum, integral or limit: exact, or its real and imaginary part in
    digits; None where it has no finite one."""
    expression = to_sympy(node, point)
    is_infinite = isinstance(expression, sympy.Sum) and expression.args[1][2] == sympy.oo
    if is_infinite and expression.is_convergent() is sympy.false:
        return None
    value = expression.doit()
    infinite = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan, AccumBounds)
    unknown = (sympy.Sum, sympy.Integral, sympy.Limit, sympy.Product)
    if value.has(*infinite, *unknown) or value.free_symbols:
        return None
    if value.is_Rational:
        return Fraction(int(value.p), int(value.q))
    real, imaginary = value.evalf(digits).as_real_imag()
    return str(real), str(imaginary)


@_or_none
def infinity(node: Node) -> int | None:
    """Return the sign of an expression that is an infinity, else 0 or None."""
    return {sympy.oo: 1, -sympy.oo: -1}.get(to_sympy(node, {}).doit(), 0)


@_or_none
def solutions(left: Node, sign: str, right: Node) -> Any:
    """Return the real solutions of an inequality in one variable as a set of sympy; None where it
    finds none."""
    forms = {"<": sympy.Lt, "<=": sympy.Le, ">": sympy.Gt, ">=": sympy.Ge, "!=": sympy.Ne}
    return forms[sign](to_sympy(left, {}), to_sympy(right, {})).as_set()


@_or_none
def expanded(node: Node) -> str:
    """Return one form for equal expressions with symbols, as well as sympy finds it; None for what
    it does not know."""
    return str(sympy.expand(to_sympy(node, {})))
