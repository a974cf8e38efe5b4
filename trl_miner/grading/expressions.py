"""Whether two expressions of sympy are equal: at several points, each to 400 digits."""

from typing import Any

from sympy import MatrixBase, Rational, S
from sympy.core.evalf import PrecisionExhausted

_POINTS, _LEAST = 8, 3  # points, and how many of them must have a value


def equal(a: Any, b: Any) -> bool:
    """Return whether two expressions, or two matrices, are equal; what is undefined equals nothing."""
    if isinstance(a, MatrixBase) and isinstance(b, MatrixBase):
        return a.shape == b.shape and all(map(equal, a, b))
    a, b = a.doit(), b.doit()
    if a == b:
        return a is not S.NaN
    differences = _values(a - b)
    return len(differences) >= _LEAST and not any(differences)


def proportional(a: Any, b: Any) -> bool:
    """Return whether two expressions vanish together: one is a number times the other."""
    ratios = _values(a / b)
    return len(ratios) >= _LEAST and all(
        each and abs(each / ratios[0] - 1) < 1e-20 for each in ratios
    )


def number(value: Any) -> Any:
    """Return a finite value in 30 digits, 0 where it vanishes to 400; None for none."""
    try:
        value = value.doit()
        digits = value.evalf(30, maxn=120)
        if abs(digits) < 1e-25:
            digits = value.evalf(2, maxn=400, strict=True)
        return digits if digits.is_number and digits.is_finite else None
    except PrecisionExhausted:
        return S.Zero
    except MemoryError:
        raise
    except Exception:  # sympy's errors have no common class
        return None


def _values(expression: Any) -> list[Any]:
    """Return the values at the points, the same ones each time; at the last three, all is negative."""
    unknowns = sorted(expression.free_symbols, key=str)
    values = []
    for trial in range(_POINTS if unknowns else _LEAST):
        sign = 1 if trial < _POINTS - 3 else -1
        point = {
            unknown: sign * Rational(17 + 7 * trial + 12 * place, 11 + 3 * trial)
            for place, unknown in enumerate(unknowns)
        }
        values.append(number(expression.subs(point)))
    return [value for value in values if value is not None]
