r"""Units behind a value: `5\text{ cm}` is `50\text{ mm}`, and `5` if the other side has none.

sympy knows the units of physics. Words that it does not know, such as apples, are a unit of their
own kind. Letters that might be unknowns are no unit: `2m` is not 2.
"""

import re
from typing import Any

from sympy import Expr, S, Symbol
from sympy.physics import units

_CENT = Symbol("cent")
_NAMES = vars(units) | {
    "h": units.hour, "hr": units.hour, "min": units.minute, "in": units.inch, "cent": _CENT, "dollar": 100 * _CENT,
    "square": 2, "sq": 2, "cubic": 3,
}  # fmt: skip
# Words that change a value instead of naming what it counts; and digits and signs.
_CHANGES = (
    r"\b(?:or|and|not|no|none|never|more|less|fewer|greater|than|least|most|over|under|above|below|about|to|minus|plus"
    r"|times|thousand|million|billion|hundred|dozen|half|double|twice|maybe|perhaps|probably|if|unless|except|wrong"
    r"|incorrect|mod|base|either|neither|then|but|between|approx\w*|almost|nearly|percent\w*|squared|cubed)\b|n't\b"
    r"|(?<!\^)(?<!\^-)\d|[^\w\s/^.:()-]|[^\x00-\x7f]"
)  # fmt: skip
_EXPONENT = r"(?:\s*\^\s*\{?\s*-?\d\s*\}?)?"
_UNIT = (
    r"(.*?(?:[\w)}|](?=\s*\\text\s*\{(?:[^{}]|\{[^{}]*\})*\}.{0,30}$)"
    rf"|(?:[\d}}]|\\pi)(?=\s+(?:[a-z]?[A-Za-z]m|ft|kg|mph|min|[A-Za-z]{{4,}}){_EXPONENT}"
    rf"(?:\s*[/ ]\s*[A-Za-z]+{_EXPONENT}){{0,3}}$))).*"
)


def split_unit(text: str) -> tuple[str, str]:
    r"""Return a value and the words of its unit; "" without a unit.

    >>> split_unit(r"5\\text{ cm}^2")
    ('5', 'cm^2')
    """
    match = re.fullmatch(_UNIT, text)
    words = " ".join(
        re.sub(r"\\text|[{}\\]|(?<=[a-z])\.", " ", text[match.end(1) :] if match else "").split()
    )
    words = re.sub(r"\s*\^\s*", "^", words)
    if match is None or re.search(_CHANGES, words.casefold()):
        return text, ""
    return match[1].strip(), words


def factor(first: str, second: str) -> Any:
    """Return what turns a value in the second unit into one in the first; 0 where they differ.

    A missing unit is any.
    """
    if not first or not second:
        return 1
    a, b = _unit(first), _unit(second)
    if a is None or b is None:
        return int(first.rstrip("s") == second.rstrip("s"))
    ratio = b / a if (b / a).is_number else units.convert_to(b, a) / a
    return ratio if ratio.is_number else 0


def _unit(words: str) -> Any:
    """Return the unit that words name, as an expression of sympy; None for what it does not know."""
    value, sign, power = S.One, 1, 1
    for name, exponent in re.findall(r"([A-Za-z]+|/)(?:\^(-?\d))?", words):
        unit = _NAMES.get(name, _NAMES.get(name.removesuffix("s")))
        if name in ("per", "/"):
            sign = -1
        elif isinstance(unit, int):  # square
            power = unit
        elif isinstance(unit, Expr):
            value *= unit ** (sign * power * int(exponent or 1))
            power = 1
        else:
            return None
    return value
