"""What sympy computes: infinite sums, integrals, limits, and the solutions of inequalities.

Imports sympy, which takes a second, so only what needs it imports this module.
"""

import operator
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import sympy
from sympy.calculus.accumulationbounds import AccumBounds

from .parsing import Node

_FUNCTIONS = {
    "ln": sympy.log, "abs": sympy.Abs, "floor": sympy.floor, "ceiling": sympy.ceiling, "factorial": sympy.factorial,
    "factorial2": sympy.factorial2, "binomial": sympy.binomial, "gcd": sympy.gcd, "lcm": sympy.lcm, "max": sympy.Max,
    "min": sympy.Min, "mod": sympy.Mod, "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan,
    "arccot": sympy.acot, "Re": sympy.re, "Im": sympy.im,
}  # fmt: skip
_OPERATIONS = {
    "add": operator.add,
    "times": operator.mul,
    "over": operator.truediv,
    "power": operator.pow,
}
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infinity": sympy.oo}


def to_sympy(node: Node, point: Mapping[str, Fraction]) -> Any:
    """Return an expression of sympy; symbols are real, and those in `point` have a value.

    Raises:
        NotImplementedError: sympy has no such expression.
    """

    def convert(part: Node) -> Any:
        kind, *rest = part
        if kind == "number":
            return sympy.Rational(rest[0].numerator, rest[0].denominator)
        if kind == "constant":
            return _CONSTANTS[rest[0]]
        if kind == "symbol":
            value = point.get(rest[0])
            if value is None:
                return sympy.Symbol(rest[0], real=True)
            return sympy.Rational(value.numerator, value.denominator)
        if kind == "apply":
            return convert(("symbol", rest[0])) * convert(rest[1])
        if kind == "negative":
            return -convert(rest[0])
        if kind in ("add", "times", "over", "power"):
            a, b = map(convert, rest)
            return _OPERATIONS[kind](a, b)
        if kind == "call":
            return _call(rest[0], [convert(argument) for argument in rest[1:]])
        if kind in ("sum", "product", "integral", "limit"):
            return _over_range(kind, rest, point)
        raise NotImplementedError(kind)

    return convert(node)


def _call(name: str, arguments: list[Any]) -> Any:
    if name == "root":
        return sympy.root(*arguments)
    if name == "log":
        return sympy.log(*arguments)
    function = _FUNCTIONS.get(name) or getattr(sympy, name, None)
    if function is None or name not in {
        *_FUNCTIONS,
        *"sin cos tan cot sec csc sinh cosh tanh coth".split(),
    }:
        raise NotImplementedError(name)
    return function(*arguments)


def _over_range(kind: str, rest: list[Any], point: Mapping[str, Fraction]) -> Any:
    name = rest[0]
    outside = {key: value for key, value in point.items() if key != name}
    variable = sympy.Symbol(name, real=True)
    if kind == "limit":
        _, end, side, body = rest
        return sympy.Limit(to_sympy(body, outside), variable, to_sympy(end, point), side or "+-")
    _, first, last, body = rest
    bounds = (variable, to_sympy(first, point), to_sympy(last, point))
    form = {"sum": sympy.Sum, "product": sympy.Product, "integral": sympy.Integral}[kind]
    return form(to_sympy(body, outside), bounds)


def finite_value(
    node: Node, point: Mapping[str, Fraction], digits: int
) -> Fraction | tuple[str, str] | None:
    """Return the value of a sum, integral or limit: exact, or its real and imaginary part in
    digits; None where it has no finite one."""
    try:
        expression = to_sympy(node, point)
        if isinstance(expression, sympy.Sum) and not _converges(expression):
            return None
        if isinstance(expression, sympy.Limit) and expression.args[2] in (sympy.oo, -sympy.oo):
            expression = sympy.Limit(*expression.args[:3])
        value = expression.doit()
    except (NotImplementedError, ValueError, TypeError, AttributeError):
        return None
    infinite = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan, AccumBounds)
    if (
        value.has(*infinite, sympy.Sum, sympy.Integral, sympy.Limit, sympy.Product)
        or value.free_symbols
    ):
        return None
    if value.is_Rational:
        return Fraction(int(value.p), int(value.q))
    real, imaginary = value.evalf(digits).as_real_imag()
    return str(real), str(imaginary)


def _converges(expression: Any) -> bool:
    if expression.args[1][2] != sympy.oo:
        return True
    return expression.is_convergent() is not sympy.false


def infinity(node: Node) -> int:
    """Return the sign of an expression that is an infinity, else 0."""
    try:
        value = to_sympy(node, {}).doit()
    except (NotImplementedError, ValueError, TypeError, AttributeError):
        return 0
    return {sympy.oo: 1, -sympy.oo: -1}.get(value, 0)


def solutions(
    relation: tuple[Node, str, Node], name: str
) -> list[tuple[Any, bool, Any, bool]] | None:
    """Return the real solutions of an inequality in one variable as intervals, each with its ends
    and whether they belong to it; None where they are no finite union of intervals."""
    left, sign, right = relation
    forms = {
        "<": sympy.Lt,
        "<=": sympy.Le,
        ">": sympy.Gt,
        ">=": sympy.Ge,
        "!=": sympy.Ne,
        "=": sympy.Eq,
    }
    try:
        found = forms[sign](to_sympy(left, {}), to_sympy(right, {})).as_set()
    except (NotImplementedError, ValueError, TypeError, AttributeError, KeyError):
        return None
    pieces = []
    for part in found.args if isinstance(found, sympy.Union) else [found]:
        if isinstance(part, sympy.FiniteSet):
            pieces += [(end, True, end, True) for end in part]
        elif isinstance(part, sympy.Interval):
            pieces.append((part.start, not part.left_open, part.end, not part.right_open))
        elif part is sympy.S.Reals:
            pieces.append((-sympy.oo, False, sympy.oo, False))
        elif part is not sympy.S.EmptySet:
            return None
    return pieces


def expanded(node: Node) -> str | None:
    """Return one form for equal expressions with symbols, as well as sympy finds it; None for what
    it does not know."""
    try:
        return str(sympy.expand(to_sympy(node, {})))
    except (NotImplementedError, ValueError, TypeError, AttributeError):
        return None
