r"""What a text in one notation means: values of sympy, and several of them as `Items`.

latex2sympy2_extended, the parser of math-verify, reads each value. Lists, brackets, ratios and
names are taken apart before: it drops names, and takes `(1, 2)` for an interval.
"""

import re
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from latex2sympy2_extended import NormalizationConfig, latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from sympy import And, Float, MatrixBase, Rational, S, Symbol
from sympy.core.relational import Relational

from .expressions import equal

# math-verify's own reading of units takes letters for them; and without case, R is r.
_NORMALIZATION = NormalizationConfig(malformed_operators=True, boxed="none")
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_CONSTANTS = {Symbol("e", real=True): S.Exp1, Symbol("i", real=True): S.ImaginaryUnit}
_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
)
_WORDS = {word: S(value) for value, word in enumerate(_NUMBERS.split())} | {
    "no solution": S.EmptySet, "empty set": S.EmptySet, "infinity": S.Infinity, "all real numbers": S.Reals,
}  # fmt: skip
# What the parser would misread, as it drops what it does not know.
_UNREADABLE = re.compile(
    r"\\text|\\angle|\\triangle|\\bar|\\overline|['\":]"  # words, figures, conjugates, primes
    r"|^[A-Z]{2,}$|(?<![A-Za-z\\])(?![A-Za-z]?matrix)[A-Za-z]{4,}"  # names, which are no products
    r"|(?:^|[=,])\s*-?[\d.]+\s+\d|\.\d*\."  # 1 2 is not 12
    r"|\d\s*_|\)\s*_"  # digits with a base, falling factorials
    r"|\d{4}-\d\d-\d\d"  # dates
)
_CLOSED_AT_INFINITY = re.compile(r"\\infty\s*\]|\[\s*-\s*\\infty")
_WORD = r"(?:\\text\s*\{{[\s,]*|(?<![A-Za-z\\])){}(?:\s*\}}|(?![A-Za-z]))"
_AND, _OR = _WORD.format("and"), _WORD.format("or")
_BUILDER = re.compile(r"\\\{\s*[a-z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid|\||:)(.*)\\\}")
_BRACKETS = re.compile(r"(\\\{|[(\[])([^|:]*?)(?:\\\}|[)\]])")
# What a value is the value of: names and their sums, values of functions, lengths; and points.
_NAME = r"\\?[A-Za-z]+(?:_\w|_\{[^{}]*\})?"
_NAMED = re.compile(
    rf"({_NAME}(?:\s*\+\s*{_NAME})*|[A-Zf-hpq]'*\s*\([^()]*\)|\(\s*{_NAME}(?:,\s*{_NAME})+\s*\)|\|[A-Z]{{1,2}}\|"
    r"|\\frac\{d\w\}\{d\w\}|\\angle\s*[A-Z]+|\\overline\{[A-Z]+\})\s*=\s*(.+)|([A-Z])\s*(\([^()]*,.*\))"
)


class Items(NamedTuple):
    """Several values: kind "list", "and" or "or" as they are joined; "set" without order; "ratio";
    else their two brackets, such as "(]"."""

    kind: str
    items: list[Any]


@lru_cache(maxsize=256)
def readings(text: str) -> list[tuple[str, Any]]:
    """Return what a text may mean, each with its name: `y = 2x` is a value and an equation."""
    joined = re.sub(
        r"(?<![\d.])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])", lambda match: match[0].replace(",", ""), text
    )
    found = [named(each) for each in {joined: 1, text: 1}]  # of 1,000 both the number and the list
    if found[0][0] and "=" in text:
        found.append(("", leaf(text)))
    return [each for each in found if each[1] is not None]


def named(text: str) -> tuple[str, Any]:
    """Return the name of a value and what it means: of `x = 5`, `f(1) = 5` or `P(1, 2)`."""
    match = _NAMED.fullmatch(text)
    if match is None or len(parts(text)) > 1:
        return "", read(text)
    return match[1] or match[3], read(match[2] or match[4])


def read(text: str) -> Any:
    """Return what a text means: a value of sympy, or Items; None for no mathematics."""
    several = parts(text)
    if len(several) > 1:
        return _joined(text, several)
    if match := _BUILDER.fullmatch(text):
        return read(match[1])
    values = [leaf(side) for side in parts(text, "=")]
    if (
        len(values) > 1 and None not in values and not any(each.free_symbols for each in values)
    ):  # 2 + 3 = 5
        return values[0] if all(equal(values[0], each) for each in values) else leaf(text)
    values = [leaf(part) for part in text.split(":")]
    if len(values) > 1 and None not in values:
        return (
            _items("ratio", [each / values[0] for each in values])
            if len(values) > 2
            else values[0] / values[1]
        )
    match = _BRACKETS.fullmatch(text)
    inside = parts(match[2]) if match and not _CLOSED_AT_INFINITY.search(text) else []
    if len(inside) > 1 or (inside and text[0] == "\\"):
        return _items("set" if text[0] == "\\" else text[0] + text[-1], [*map(read, inside)])
    return leaf(text)


def parts(text: str, separator: str = rf"[,;]|{_AND}|{_OR}") -> list[str]:
    """Split a text at the separators outside all brackets; a plus-minus is two parts."""
    depth, found = 0, [""]
    for token in re.findall(rf"\\text\s*\{{[^{{}}]*\}}|{separator}|.", text, re.DOTALL):
        depth += (token in "([{") - (token in ")]}")
        if depth < 0:
            return [text]
        if depth == 0 and re.fullmatch(separator, token):
            found.append("")
        else:
            found[-1] += token
    return [
        "".join(map(str.__add__, ("", *signs), pieces)).strip()
        for pieces in (part.split("\\pm") for part in found if part.strip())
        for signs in product("+-", repeat=len(pieces) - 1)
    ]


def _joined(text: str, several: list[str]) -> Items | None:
    """Return a list; `x = 1, y = 2` has the order of its names, and `x = 1, -1` has none."""
    pairs = [named(part) for part in several]
    names = {name for name, _ in pairs}
    kind = "or" if re.search(_OR, text) else "and" if re.search(_AND, text) else "list"
    if len(names) == len(pairs):
        kind, pairs = "()", sorted(pairs, key=lambda pair: pair[0])
    if len(names - {""}) == 1:
        kind = "set"
    return _items(kind, [tree for _, tree in pairs])


def _items(kind: str, trees: list[Any]) -> Items | None:
    return None if None in trees else Items(kind, trees)


def leaf(text: str) -> Any:
    """Return a value of sympy with exact numbers; None for what is no mathematics."""
    words = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).strip().casefold()
    if words in _WORDS or _UNREADABLE.search(text) or _CLOSED_AT_INFINITY.search(text):
        return _WORDS.get(words)
    try:
        value = latex2sympy(
            text, is_real=True, normalization_config=_NORMALIZATION, conversion_config=_CONVERSION
        )
        return value.applyfunc(_exact) if isinstance(value, MatrixBase) else _exact(value)
    except MemoryError:
        raise
    except Exception:  # the parser's errors have no common class
        return None


def _exact(value: Any) -> Any:
    """Return a value with fractions for decimals, and its constants."""
    if isinstance(value, And):
        return Items("and", [*map(_exact, getattr(value, "_unsorted_args", value.args))])
    if isinstance(value, Relational):  # not evaluated: 17 = 5 is an equation
        return value.func(*map(_exact, value.args), evaluate=False)
    return value.xreplace({each: Rational(str(each)) for each in value.atoms(Float)}).subs(
        _CONSTANTS
    )
