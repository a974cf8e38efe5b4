r"""Whether two expressions have one value: exactly where they are rational, else to hundreds of
digits.

Expressions with symbols are equal if they are so at several points. A value that does not exist
(0/0, an infinity, a divergent sum) equals nothing, and one that is too large to be computed equals
only itself, written the same way.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache, reduce
from math import comb, factorial, gcd, isqrt, lcm, perm
from typing import Any

import mpmath

from .parsing import FUNCTION_LETTERS, Node, symbols

_BITS = 2_000_000  # of an exact number
_STEPS = 100_000  # of one evaluation
_WORK = 10**9  # bits
_TERMS = 20_000  # of a sum
_FIRST_DIGITS, _DIGITS, _MOST_DIGITS = 60, 400, 20_000
_NOISE = 100  # digits after which a value is as good as 0, where larger ones were added
_POINTS, _ENOUGH = 8, 3
# Symbols that stand for whole numbers, where a function needs one.
_WHOLE = {*"nkmjiNKMlrst"}
_PERIODIC = {"sin", "cos", "tan", "cot", "sec", "csc"}


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
        self.point, self.digits, self.log_base = dict(point), digits, log_base
        self.context = _context(digits + 25)
        self.steps = self.work = 0
        self.largest: Value = 0  # of what was added, or had a sine: errors are relative to it
        self.lost = 0  # digits by which one summand was below another
        self.is_approximate = False  # whether no more digits can be had
        self.is_complex = False  # whether a root or logarithm left the real numbers

    def __call__(self, node: Node) -> Value:
        self.steps += 1
        if self.steps > _STEPS:
            raise TooLarge
        method = getattr(self, "_" + node[0].replace("-", "_"), None)
        if method is None:
            raise NoValue(node[0])
        try:
            value = method(*node[1:])
        except (ZeroDivisionError, ValueError, ArithmeticError) as error:
            raise NoValue from error
        return self.checked(value)

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

    def inexact(self, value: Value) -> Any:
        if isinstance(value, Fraction):
            return self.context.mpf(value.numerator) / value.denominator
        return value

    def _number(self, value: Fraction, decimals: int | None) -> Value:
        return value

    def _constant(self, name: str) -> Value:
        if name == "infinity":
            raise NoValue
        return {"pi": +self.context.pi, "e": +self.context.e, "i": self.context.j}[name]

    def _symbol(self, name: str) -> Value:
        if name not in self.point:
            raise NoValue
        return self.point[name]

    def _apply(self, name: str, argument: Node) -> Value:
        value = self(argument)
        if name in ("\\Gamma", "\\zeta"):
            value = self.inexact(value)
            return self.context.gamma(value) if name == "\\Gamma" else self.context.zeta(value)
        if name[0] in FUNCTION_LETTERS:  # some number, the same for the same argument
            written = (
                value if isinstance(value, Fraction) else self.context.nstr(value, self.digits // 2)
            )
            return Fraction(random.Random(f"{name} {written}").randint(1, 10**9), 10**8 + 7)
        if not symbols(argument) and self.is_zero(value):
            raise NoValue
        return (
            self(("symbol", name)) * value
            if isinstance(value, Fraction)
            else self.inexact(self.point[name]) * value
        )

    def _percent(self, part: Node) -> Value:
        return self(part) / 100

    def _quantity(self, part: Node, unit: Any) -> Value:
        if unit.exponents == (("deg", 1),):
            return self(part) * self.context.pi / 180
        raise NoValue("a unit within an expression")

    def _negative(self, part: Node) -> Value:
        return -self(part)

    def _add(self, first: Node, second: Node) -> Value:
        a, b = self(first), self(second)
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return a + b
        a, b = self.inexact(a), self.inexact(b)
        sizes = [abs(part) for part in (a, b) if part != 0]
        self.largest = max([self.largest, *sizes])
        if len(sizes) == 2:
            apart = abs(self.context.mag(a) - self.context.mag(b)) * 0.302
            if apart > 1e9:
                raise TooLarge
            self.lost = max(self.lost, int(apart) - self.digits + 40)
        return a + b

    def _times(self, first: Node, second: Node) -> Value:
        a, b = self(first), self(second)
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return a * b
        return self.inexact(a) * self.inexact(b)

    def _over(self, first: Node, second: Node) -> Value:
        a, b = self(first), self(second)
        if self.is_zero(b):
            raise NoValue
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return a / b
        return self.inexact(a) / self.inexact(b)

    def is_zero(self, value: Value) -> bool:
        if isinstance(value, Fraction) or value == 0:
            return bool(value == 0)
        return bool(abs(value) < self.largest * self.context.mpf(10) ** (-self.digits))

    def _power(self, base: Node, exponent: Node) -> Value:
        return self.power(self(base), self(exponent))

    def power(self, base: Value, exponent: Value) -> Value:
        if self.is_zero(base):
            if self.is_real(exponent) and exponent > 0:
                return Fraction(0)
            raise NoValue
        is_whole = isinstance(exponent, Fraction) and exponent.denominator == 1
        if is_whole and isinstance(base, Fraction):
            size = _bits(base)
            if (size - 1) * abs(exponent) > _BITS and abs(base) != 1:
                raise TooLarge
            return base ** int(exponent)
        if isinstance(base, Fraction) and isinstance(exponent, Fraction) and base > 0:
            root = _exact_root(base, exponent.denominator)
            if root is not None:
                return self.power(root, Fraction(exponent.numerator))
        if self.is_real(base) and base < 0 and not is_whole:
            self.is_complex = True
        base, exponent = self.inexact(base), self.inexact(exponent)
        if self.context.mag(exponent) + self.context.mag(self.context.log(base) or 1) > 60:
            raise TooLarge
        return self.context.power(base, exponent)

    def is_real(self, value: Value) -> bool:
        return isinstance(value, Fraction) or value.imag == 0

    def _sum(self, variable: str, first: Node, last: Node, body: Node) -> Value:
        return self.in_range(variable, first, last, body, is_sum=True)

    def _product(self, variable: str, first: Node, last: Node, body: Node) -> Value:
        return self.in_range(variable, first, last, body, is_sum=False)

    def in_range(self, variable: str, first: Node, last: Node, body: Node, is_sum: bool) -> Value:
        if ("constant", "infinity") in (first, last):
            kind = "sum" if is_sum else "product"
            return self.by_sympy((kind, variable, first, last, body))
        start, end = self(first), self(last)
        if not (isinstance(start, Fraction) and isinstance(end, Fraction)):
            raise NoValue
        if start.denominator != 1 or end.denominator != 1:
            raise NoValue
        if end - start > _TERMS:
            raise TooLarge
        total: Value = Fraction(0 if is_sum else 1)
        outside = self.point.get(variable)
        for index in range(int(start), int(end) + 1):
            self.point[variable] = Fraction(index)
            term = self(body)
            if not (isinstance(total, Fraction) and isinstance(term, Fraction)):
                total, term = self.inexact(total), self.inexact(term)
                self.largest = max([self.largest, abs(total), abs(term)])
            total = self.checked(total + term if is_sum else total * term)
        self.point.pop(variable, None)
        if outside is not None:
            self.point[variable] = outside
        return total

    def _integral(self, variable: str, first: Node, last: Node, body: Node) -> Value:
        infinite = ("constant", "infinity")
        if infinite in (first, last) or ("negative", infinite) in (first, last):
            return self.by_sympy(("integral", variable, first, last, body))
        ends = [self.inexact(self(first)), self.inexact(self(last))]
        outside = self.point.get(variable)

        def at(place: Any) -> Any:
            self.point[variable], self.largest = place, 0
            return self.inexact(self(body))

        value, error = self.context.quad(at, ends, error=True)
        self.point.pop(variable, None)
        if outside is not None:
            self.point[variable] = outside
        self.is_approximate = True
        self.largest = max(self.largest, 1)
        if not error < self.context.mpf(10) ** (-self.digits * 5 // 6):
            raise NoValue
        return value

    def _limit(self, *parts: Any) -> Value:
        return self.by_sympy(("limit", *parts))

    def by_sympy(self, node: Node) -> Value:
        from .symbolic import finite_value

        value = finite_value(node, self.point, self.digits + 25)
        if value is None:
            raise NoValue
        self.largest = max(self.largest, 1)
        if isinstance(value, Fraction):
            return value
        real, imaginary = (self.context.mpf(part) for part in value)
        return self.context.mpc(real, imaginary) if imaginary else real

    def _call(self, name: str, *arguments: Node) -> Value:
        if name == "determinant":
            return self.determinant(arguments[0][1:])
        if name in _PERIODIC:
            return self.periodic(name, self(arguments[0]))
        method = getattr(self, "call_" + name, None)
        if method is None:
            return self.elementary(name, self(arguments[0]))
        return method(*(self(argument) for argument in arguments))

    def determinant(self, rows: Sequence[Sequence[Node]]) -> Value:
        if len(rows) != len(rows[0]) or len(rows) > 4:
            raise NoValue
        if len(rows) == 1:
            return self(rows[0][0])
        total: Value = Fraction(0)
        for index, entry in enumerate(rows[0]):
            minor = [[*row[:index], *row[index + 1 :]] for row in rows[1:]]
            term = self.inexact(self(entry)) * self.inexact(self.determinant(minor))
            total = self.inexact(total) + (-term if index % 2 else term)
        self.largest = max(self.largest, 1)
        return total

    def periodic(self, name: str, angle: Value) -> Value:
        if angle == 0 and isinstance(angle, Fraction) and name in ("sin", "tan"):
            return Fraction(0)
        angle = self.inexact(angle)
        if self.context.mag(angle) > 60:
            raise TooLarge
        self.largest = max(self.largest, abs(angle), 1)
        below = {"tan": "cos", "sec": "cos", "cot": "sin", "csc": "sin"}.get(name)
        if below and self.is_zero(getattr(self.context, below)(angle)):
            raise NoValue
        return getattr(self.context, name)(angle)

    def elementary(self, name: str, value: Value) -> Value:
        names = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "arcsec": "asec",
                 "arccsc": "acsc", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "coth": "coth"}  # fmt: skip
        if name not in names:
            raise NoValue(name)
        value = self.inexact(value)
        if name in ("arcsin", "arccos") and self.is_real(value) and abs(value) > 1:
            self.is_complex = True
        self.largest = max(self.largest, 1)
        return getattr(self.context, names[name])(value)

    def call_root(self, value: Value, degree: Value) -> Value:
        if not isinstance(degree, Fraction) or degree.denominator != 1:
            raise NoValue
        if self.is_real(value) and value < 0 and degree % 2:
            return -self.power(-value, 1 / degree)
        return self.power(value, 1 / degree)

    def call_ln(self, value: Value) -> Value:
        if self.is_zero(value):
            raise NoValue
        if value == 1:
            return Fraction(0)
        if self.is_real(value) and value < 0:
            self.is_complex = True
        if isinstance(value, Fraction) and value > 0:  # numbers that no float could hold
            above, below = self.context.mpf(value.numerator), self.context.mpf(value.denominator)
            self.largest = max(self.largest, 1)
            return self.context.log(above) - self.context.log(below)
        self.largest = max(self.largest, 1)
        return self.context.log(value)

    def call_log(self, value: Value, base: Value | None = None) -> Value:
        if base is None:
            base = Fraction(10) if self.log_base == "10" else None
        if base is None:
            return self.call_ln(value)
        if isinstance(value, Fraction) and isinstance(base, Fraction) and value > 0 and base > 0:
            exact = _exact_log(value, base)
            if exact is not None:
                return exact
        below = self.call_ln(base)
        if below == 0:
            raise NoValue
        return self.inexact(self.call_ln(value)) / below

    def call_abs(self, value: Value) -> Value:
        return abs(value)

    def call_floor(self, value: Value) -> Value:
        return Fraction(self.rounded(value, mpmath.floor))

    def call_ceiling(self, value: Value) -> Value:
        return Fraction(self.rounded(value, mpmath.ceil))

    def rounded(self, value: Value, function: Any) -> int:
        if isinstance(value, Fraction):
            below = value.numerator // value.denominator
            return below if function is mpmath.floor or value.denominator == 1 else below + 1
        if not self.is_real(value):
            raise NoValue
        if self.context.mag(value) > 3 * self.digits:
            raise TooLarge
        nearest = self.context.nint(value.real)
        if abs(value - nearest) < self.context.mpf(10) ** (-self.digits // 2):
            return int(nearest)
        return int(self.context.floor(value.real)) + (function is mpmath.ceil)

    def call_factorial(self, value: Value) -> Value:
        if isinstance(value, Fraction) and value.denominator == 1:
            if value < 0:
                raise NoValue
            if value > 20_000:
                raise TooLarge
            return Fraction(factorial(int(value)))
        if not isinstance(value, Fraction) and self.context.mag(value) > 30:
            raise TooLarge
        return self.context.gamma(self.inexact(value) + 1)

    def call_factorial2(self, value: Value) -> Value:
        number = self.whole(value, 20_000)
        return Fraction(reduce(lambda product, factor: product * factor, range(number, 0, -2), 1))

    def whole(self, value: Value, most: int) -> int:
        if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
            raise NoValue
        if value > most:
            raise TooLarge
        return int(value)

    def call_binomial(self, above: Value, below: Value) -> Value:
        if isinstance(below, Fraction) and below.denominator == 1 and isinstance(above, Fraction):
            if below < 0:
                return Fraction(0)
            if above.denominator == 1 and above >= 0:
                return Fraction(comb(self.whole(above, 100_000), self.whole(below, 100_000)))
            product = Fraction(1)
            for index in range(self.whole(below, 2_000)):
                product *= (above - index) / (index + 1)
            return product
        return self.context.binomial(self.inexact(above), self.inexact(below))

    def call_arrangements(self, above: Value, below: Value) -> Value:
        return Fraction(perm(self.whole(above, 20_000), self.whole(below, 20_000)))

    def call_gcd(self, *values: Value) -> Value:
        return Fraction(gcd(*(self.whole(abs(value), 10**4000) for value in values)))

    def call_lcm(self, *values: Value) -> Value:
        return Fraction(lcm(*(self.whole(abs(value), 10**400) for value in values)))

    def call_mod(self, value: Value, modulus: Value) -> Value:
        if not (isinstance(value, Fraction) and isinstance(modulus, Fraction)):
            raise NoValue
        return value % modulus

    def call_max(self, *values: Value) -> Value:
        return max(values, key=self.inexact)

    def call_min(self, *values: Value) -> Value:
        return min(values, key=self.inexact)

    def call_Re(self, value: Value) -> Value:
        return value if isinstance(value, Fraction) else value.real

    def call_Im(self, value: Value) -> Value:
        return Fraction(0) if isinstance(value, Fraction) else value.imag

    def call_arg(self, value: Value) -> Value:
        return self.context.arg(self.inexact(value))


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    if degree == 1:
        return value
    if degree > 64 or _bits(value) > 10_000:
        return None
    roots = [_whole_root(part, degree) for part in (value.numerator, value.denominator)]
    return Fraction(*roots) if None not in roots else None  # type: ignore[arg-type]


def _whole_root(number: int, degree: int) -> int | None:
    if degree == 2:
        root = isqrt(number)
    else:
        root = 1 << -(-number.bit_length() // degree)
        while root**degree > number:
            root = ((degree - 1) * root + number // root ** (degree - 1)) // degree
    return root if root**degree == number else None


def _exact_log(value: Fraction, base: Fraction) -> Fraction | None:
    if (
        base <= 0
        or base == 1
        or max(value.numerator.bit_length(), base.numerator.bit_length()) > 4000
    ):
        return None
    if base < 1:
        inverse = _exact_log(value, 1 / base)
        return None if inverse is None else -inverse
    exponent = 0
    while value > 1 and exponent < 4000:
        value, exponent = value / base, exponent + 1
    while value < 1 and exponent > -4000:
        value, exponent = value * base, exponent - 1
    return Fraction(exponent) if value == 1 else None


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
    bases = ["e"]
    if _has(first, "log") or _has(second, "log"):
        bases = ["e"] if _has(first, "ln") else ["e", "10"]
    return any(_are_equal(first, second, base) for base in bases)


def _has(node: Any, function: str) -> bool:
    if not isinstance(node, tuple):
        return False
    is_it = node[:2] == ("call", function) and (function != "log" or len(node) == 3)
    return is_it or any(_has(part, function) for part in node)


def _are_equal(first: Node, second: Node, base: str) -> bool:
    names = sorted(symbols(first) | symbols(second))
    if not names:
        return _agree(first, second, {}, base, is_strict=True, is_deep=True) is True
    allows_complex = _has_part(first, ("constant", "i")) or _has_part(second, ("constant", "i"))
    has_bars = _has(first, "abs"), _has(second, "abs")
    agreed = 0
    for point in points(names, first, second):
        is_strict = allows_complex or has_bars[0] != has_bars[1]
        verdict = _agree(first, second, point, base, is_strict, is_deep=agreed == 0)
        if verdict is False:
            return False
        agreed += verdict is True
    return agreed >= _ENOUGH or first == second


def _has_part(node: Any, part: Node) -> bool:
    return node == part or (isinstance(node, tuple) and any(_has_part(each, part) for each in node))


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
            has_domain = both[0].is_complex or _has(second, "factorial")
            return None if point and has_domain else False
        except TooLarge:
            break
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return a == b
        wanted = _digits_for(both, a, b)
        if wanted is None:
            is_real = not (both[0].is_complex or both[1].is_complex)
            return False if is_strict or is_real or not point else None
        if both[0].is_approximate or both[1].is_approximate:
            return wanted <= digits
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


def _whole_symbols(node: Any) -> set[str]:
    """Return the symbols of which a function needs a whole number."""
    if not isinstance(node, tuple) or not node:
        return set()
    names = {name for part in node for name in _whole_symbols(part)}
    if node[0] == "call":
        inner = {name for part in node[2:] for name in symbols(part)}
        if node[1] in ("factorial", "factorial2", "binomial", "gcd", "lcm", "mod", "arrangements"):
            names |= inner
        elif node[1] in ("floor", "ceiling") or (
            node[1] in _PERIODIC and _has_part(node, ("constant", "pi"))
        ):
            names |= inner & _WHOLE
    elif node[0] in ("sum", "product"):
        names |= symbols(node[2]) | symbols(node[3])
    elif node[0] == "power" and node[1][0] == "negative":
        names |= symbols(node[2])
    return names
