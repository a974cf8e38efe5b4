r"""Whether two expressions have one value: exactly where they are rational, else to hundreds of
digits.

Expressions with symbols are equal if they are so at several points. A value that does not exist
(0/0, an infinity, a divergent sum) equals nothing, and one that is too large to be computed equals
only itself, written the same way.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import mpmath

from .parsing import FUNCTION_LETTERS, INFINITY, Node, nodes_in, symbols
from .units import DEGREE

_BITS = 2_000_000  # of an exact number
_STEPS = 100_000  # of one evaluation
_WORK = 10**9  # bits
_TERMS = 20_000  # of a sum
_FIRST_DIGITS, _DIGITS, _MOST_DIGITS = 60, 400, 20_000
_NOISE = 100  # digits after which a value is as good as 0, where larger ones were added
_POINTS, _ENOUGH = 8, 3
# Symbols that stand for whole numbers, where a function needs one.
_WHOLE = {*"nkmjiNKMlrst"}
# The periodic functions, and what must not be 0 below them.
_PERIODIC = {"sin": "", "cos": "", "tan": "cos", "sec": "cos", "cot": "sin", "csc": "sin"}
_ELEMENTARY = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "arcsec": "asec", "arccsc": "acsc",
    "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "coth": "coth", "arg": "arg",
}  # fmt: skip
# Functions of whole numbers, and the largest one that each takes.
_OF_WHOLE: dict[str, tuple[Callable[..., int], int]] = {
    "factorial": (math.factorial, 20_000),
    "factorial2": (lambda n: math.prod(range(n, 0, -2)) if n >= 0 else math.factorial(n), 20_000),
    "binomial": (lambda n, k: math.comb(n, k) if k >= 0 else 0, 100_000),
    "gcd": (math.gcd, 10**4000),
    "lcm": (math.lcm, 10**400),
}

Value = Any  # a Fraction, or a number of mpmath


class NoValue(Exception):
    """An expression has no finite value."""


class TooLarge(Exception):
    """A value cannot be computed."""


@cache
def _context(digits: int) -> Any:
    context = mpmath.mp.clone()
    context.dps = digits
    return context


class Evaluator:
    """Evaluates expressions at one point.

    Args:
        point: The value of each symbol.
        digits: Digits of what is not rational.
        log_base: What `\\log` without a base means: "e" or "10".
    """

    def __init__(self, point: dict[str, Fraction], digits: int, log_base: str = "e") -> None:
        self.point, self.digits, self.log_base = point, digits, log_base
        self.context = _context(digits + 25)
        self.steps = self.work = 0
        self.largest: Value = 0  # of what was added, or had a sine: errors are relative to it
        self.lost = 0  # digits by which one summand was below another
        self.is_complex = False  # whether a root or logarithm left the real numbers

    def __call__(self, node: Node) -> Value:
        self.steps += 1
        if self.steps > _STEPS:
            raise TooLarge
        try:
            return self.checked(self.value(node))
        except (ValueError, ArithmeticError) as error:
            raise NoValue from error

    def checked(self, value: Value) -> Value:
        """Return a finite value that is not too large."""
        if isinstance(value, Fraction):
            bits = _bits(value)
            # a fraction in its lowest terms costs the square of its length
            self.work += bits if value.denominator == 1 else bits * (1 + bits // 2000)
            if bits > _BITS or self.work > _WORK:
                raise TooLarge
        elif not self.context.isfinite(value):
            raise NoValue
        return value

    def value(self, node: Node) -> Value:
        match node:
            case ("number", value, _):
                return value
            case ("constant", "i"):
                return self.context.j
            case ("constant", "pi" | "e" as name):
                return +getattr(self.context, name)
            case ("symbol", name) if name in self.point:
                return self.point[name]
            case ("negative", part):
                return -self(part)
            case ("percent", part):
                return self(part) / 100
            case ("quantity", part, unit) if unit == DEGREE:
                return self(part) * self.context.pi / 180
            case ("add", first, second):
                return self.sum(*self.pair(first, second))
            case ("times", first, second):
                a, b = self.pair(first, second)
                return a * b
            case ("over", first, second):
                a, b = self.pair(first, second)
                return a / self.not_zero(b)
            case ("power", base, exponent):
                return self.power(self(base), self(exponent))
            case ("apply", name, argument):
                return self.applied(name, argument)
            case ("sum" | "product" as kind, variable, first, last, body) if INFINITY not in (
                first,
                last,
            ):
                return self.in_range(kind, variable, first, last, body)
            case ("sum" | "product" | "integral" | "limit", *_) | ("call", "determinant", _):
                return self.by_sympy(node)
            case ("call", name, *arguments):
                return self.call(name, [*map(self, arguments)])
        raise NoValue(node[0])

    def pair(self, first: Node, second: Node) -> tuple[Value, Value]:
        return self.alike(self(first), self(second))

    def alike(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Return two values, both exact or neither."""
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return a, b
        return self.inexact(a), self.inexact(b)

    def inexact(self, value: Value) -> Any:
        if isinstance(value, Fraction):
            return self.context.mpf(value.numerator) / value.denominator
        return value

    def is_zero(self, value: Value) -> bool:
        if isinstance(value, Fraction) or value == 0:
            return bool(value == 0)
        return bool(abs(value) < self.largest * self.context.mpf(10) ** (-self.digits))

    def not_zero(self, value: Value) -> Value:
        if self.is_zero(value):
            raise NoValue
        return value

    def is_real(self, value: Value) -> bool:
        return isinstance(value, Fraction) or value.imag == 0

    def sum(self, a: Value, b: Value) -> Value:
        if not isinstance(a, Fraction):
            sizes = [abs(part) for part in (a, b) if part != 0]
            self.largest = max([self.largest, *sizes])
            if len(sizes) == 2:
                apart = abs(self.context.mag(a) - self.context.mag(b)) * 0.302
                if apart > 1e9:
                    raise TooLarge
                self.lost = max(self.lost, int(apart) - self.digits + 40)
        return a + b

    def power(self, base: Value, exponent: Value) -> Value:
        if self.is_zero(base):
            if self.is_real(exponent) and exponent > 0:
                return Fraction(0)
            raise NoValue
        is_whole = isinstance(exponent, Fraction) and exponent.denominator == 1
        if is_whole and isinstance(base, Fraction):
            if (_bits(base) - 1) * abs(exponent) > _BITS and abs(base) != 1:
                raise TooLarge
            return base ** int(exponent)
        if self.is_real(base) and base < 0 and not is_whole:
            self.is_complex = True
        base, exponent = self.inexact(base), self.inexact(exponent)
        if self.context.mag(exponent) + self.context.mag(self.context.log(base) or 1) > 60:
            raise TooLarge
        return self.context.power(base, exponent)

    def applied(self, name: str, argument: Node) -> Value:
        value = self(argument)
        if name[0] in FUNCTION_LETTERS:  # some number, the same for the same argument
            written = value
            if not isinstance(value, Fraction):
                written = self.context.nstr(value, self.digits // 2)
            return Fraction(random.Random(f"{name} {written}").randint(1, 10**9), 10**8 + 7)
        if not symbols(argument):
            self.not_zero(value)
        factor = self(("symbol", name))
        return factor * value if isinstance(value, Fraction) else self.inexact(factor) * value

    def in_range(self, kind: str, variable: str, first: Node, last: Node, body: Node) -> Value:
        start, end = self(first), self(last)
        if not (_is_whole(start) and _is_whole(end)):
            raise NoValue
        if end - start > _TERMS:
            raise TooLarge
        outside, total = self.point, Fraction(kind == "product")
        for index in range(int(start), int(end) + 1):
            self.point = outside | {variable: Fraction(index)}
            a, b = self.alike(total, self(body))
            total = self.checked(self.sum(a, b) if kind == "sum" else a * b)
        self.point = outside
        return total

    def by_sympy(self, node: Node) -> Value:
        from .symbolic import finite_value

        value = finite_value(node, self.point, self.digits + 25)
        if value is None:
            raise NoValue
        self.largest = max(self.largest, 1)
        if isinstance(value, Fraction):
            return value
        real, imaginary = map(self.context.mpf, value)
        return self.context.mpc(real, imaginary) if imaginary else real

    def call(self, name: str, values: Sequence[Value]) -> Value:
        value = values[0]
        if name in _OF_WHOLE:
            function, most = _OF_WHOLE[name]
            if not all(map(_is_whole, values)):
                raise NoValue
            if max(map(abs, values)) > most:
                raise TooLarge
            return Fraction(function(*map(int, values)))
        if name in _PERIODIC:
            return self.periodic(name, value)
        if name in _ELEMENTARY:
            if name in ("arcsin", "arccos") and self.is_real(value) and abs(value) > 1:
                self.is_complex = True
            self.largest = max(self.largest, 1)
            return getattr(self.context, _ELEMENTARY[name])(self.inexact(value))
        match name:
            case "abs":
                return abs(value)
            case "ln":
                return self.log(value)
            case "log":
                base = [Fraction(10)] if self.log_base == "10" else []
                return self.log(value, *(values[1:] or base))
            case "root":
                return self.root(*values)
            case "floor":
                return self.floor(value)
            case "ceiling":
                return -self.floor(-value)
            case "max" | "min":
                return (max if name == "max" else min)(values, key=self.inexact)
            case "mod" if isinstance(value, Fraction) and isinstance(values[1], Fraction):
                return value % values[1]
            case "Re":
                return value if isinstance(value, Fraction) else value.real
            case "Im":
                return Fraction(0) if isinstance(value, Fraction) else value.imag
        raise NoValue(name)

    def periodic(self, name: str, angle: Value) -> Value:
        if angle == 0 and isinstance(angle, Fraction) and name in ("sin", "tan"):
            return Fraction(0)
        angle = self.inexact(angle)
        if self.context.mag(angle) > 60:
            raise TooLarge
        self.largest = max(self.largest, abs(angle), 1)
        if below := _PERIODIC[name]:
            self.not_zero(getattr(self.context, below)(angle))
        return getattr(self.context, name)(angle)

    def root(self, value: Value, degree: Value) -> Value:
        if not _is_whole(degree):
            raise NoValue
        if self.is_real(value) and value < 0 and degree % 2:
            return -self.power(-value, 1 / degree)
        return self.power(value, 1 / degree)

    def log(self, value: Value, base: Value | None = None) -> Value:
        if base is not None:
            below = self.inexact(self.not_zero(self.log(base)))
            return self.inexact(self.log(value)) / below
        self.not_zero(value)
        if value == 1:
            return Fraction(0)
        if self.is_real(value) and value < 0:
            self.is_complex = True
        self.largest = max(self.largest, 1)
        if isinstance(value, Fraction) and value > 0:  # numbers that no float could hold
            return self.context.log(value.numerator) - self.context.log(value.denominator)
        return self.context.log(self.inexact(value))

    def floor(self, value: Value) -> Fraction:
        if isinstance(value, Fraction):
            return Fraction(math.floor(value))
        if not self.is_real(value):
            raise NoValue
        if self.context.mag(value) > 3 * self.digits:
            raise TooLarge
        nearest = self.context.nint(value.real)
        is_near = abs(value - nearest) < self.context.mpf(10) ** (-self.digits // 2)
        return Fraction(int(nearest if is_near else self.context.floor(value.real)))


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _is_whole(value: Value) -> bool:
    return isinstance(value, Fraction) and value.denominator == 1


def evaluate(node: Node, digits: int = _FIRST_DIGITS) -> Value:
    """Return the value of an expression without symbols.

    Raises:
        NoValue: It has none.
        TooLarge: It cannot be computed.
    """
    return Evaluator({}, digits)(node)


def values_at(points: Iterable[dict[str, Fraction]], node: Node) -> Iterator[Any]:
    """Yield the values of an expression, where it has a real one."""
    for point in points:
        evaluator = Evaluator(point, _FIRST_DIGITS)
        try:
            value = evaluator.inexact(evaluator(node))
        except (NoValue, TooLarge):
            continue
        if not evaluator.is_complex and value.imag == 0:
            yield value.real


def digits_of(node: Node, count: int) -> str | None:
    """Return the first digits of an expression without symbols; None if it has no real value."""
    return next((mpmath.nstr(value, count) for value in values_at([{}], node)), None)


def are_equal(first: Node, second: Node) -> bool:
    """Return whether two expressions have the same value, wherever they have one."""
    is_ambiguous = _has(first, "call", "log") or _has(second, "call", "log")
    bases = ["e", "10"] if is_ambiguous and not _has(first, "call", "ln") else ["e"]
    return any(_are_equal(first, second, base) for base in bases)


def _has(node: Node, *start: str) -> bool:
    """Return whether a part of a tree begins so."""
    return any(part[: len(start)] == start for part in nodes_in(node))


def _are_equal(first: Node, second: Node, base: str) -> bool:
    names = sorted(symbols(first) | symbols(second))
    if not names:
        return _agree(first, second, {}, base, is_strict=True, is_deep=True) is True
    is_complex = _has(first, "constant", "i") or _has(second, "constant", "i")
    is_strict = is_complex or _has(first, "call", "abs") != _has(second, "call", "abs")
    agreed = 0
    for point in points(names, first, second):
        verdict = _agree(first, second, point, base, is_strict, is_deep=agreed == 0)
        if verdict is False:
            return False
        agreed += verdict is True
    return agreed >= _ENOUGH or first == second


def _agree(
    first: Node, second: Node, point: dict[str, Fraction], base: str, is_strict: bool, is_deep: bool
) -> bool | None:
    """Return whether two expressions agree at a point; None where it tells nothing.

    Args:
        first: An expression of the gold.
        second: An expression of the answer.
        point: The value of each symbol.
        base: What `\\log` without a base means.
        is_strict: Whether values that are not real count.
        is_deep: Whether to compare hundreds of digits.
    """
    digits = _FIRST_DIGITS
    while digits <= _MOST_DIGITS:
        both = Evaluator(point, digits, base), Evaluator(point, digits, base)
        try:
            a = both[0](first)
        except NoValue:
            return True if first == second else None if point else False
        except TooLarge:
            break
        try:
            b = both[1](second)
        except NoValue:
            has_domain = both[0].is_complex or _has(second, "call", "factorial")
            return None if point and has_domain else False
        except TooLarge:
            break
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return a == b
        wanted = _digits_for(both, a, b)
        if wanted is None:
            is_real = not (both[0].is_complex or both[1].is_complex)
            return False if is_strict or is_real or not point else None
        if is_deep:
            wanted = max(wanted, _DIGITS)
        if digits >= wanted:
            return True
        digits = wanted
    return first == second


def _digits_for(both: tuple[Evaluator, Evaluator], a: Value, b: Value) -> int | None:
    """Return the digits in which two values must have been computed to be trusted; None if they
    differ already."""
    context = both[0].context
    a, b = (
        context.convert(evaluator.inexact(value))
        for evaluator, value in zip(both, (a, b), strict=True)
    )
    value = max(abs(a), abs(b))
    size = max(value, both[0].largest, both[1].largest)
    if abs(a - b) > size * context.mpf(10) ** (-both[0].digits * 3 // 4):
        return None
    # what was added may be far larger than the sum, or far smaller than what it was added to
    apart = context.log10(size) - max(context.log10(value) if value else -_NOISE, -_NOISE)
    return int((apart + 40) * 4 / 3) + 2 * max(both[0].lost, both[1].lost, 0)


def points(names: list[str], *nodes: Node) -> Iterator[dict[str, Fraction]]:
    """Yield points at which expressions are compared: positive ones first, then others; whole
    numbers for symbols of which a function needs them, even and odd."""
    whole = {name for node in nodes for name in _whole_symbols(node)}
    for trial in range(_POINTS):
        rng = random.Random(trial)
        point = {}
        for index, name in enumerate(names):
            if name in whole:
                point[name] = Fraction(2 * rng.randint(1, 6) + (trial >> index % 3) % 2)
                continue
            sign = -1 if trial >= _POINTS // 2 and rng.random() < 0.6 else 1
            # between 0 and 1 as well as above it
            size = Fraction(
                rng.randint(2, 40), rng.randint(41, 60) if trial % 3 == 2 else rng.randint(7, 13)
            )
            point[name] = sign * size
        yield point


def _whole_symbols(node: Node) -> set[str]:
    """Return the symbols of which a function needs a whole number."""
    names: set[str] = set()
    for part in nodes_in(node):
        match part:
            case ("call", name, *inner) if name in _OF_WHOLE or name == "mod":
                names |= symbols(tuple(inner))
            case ("call", "floor" | "ceiling", inner):
                names |= symbols(inner) & _WHOLE
            case ("call", name, inner) if name in _PERIODIC and _has(inner, "constant", "pi"):
                names |= symbols(inner) & _WHOLE
            case ("sum" | "product", _, first, last, _):
                names |= symbols(first) | symbols(last)
            case ("power", ("negative", _), exponent):
                names |= symbols(exponent)
    return names
