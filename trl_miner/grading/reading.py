r"""What a text in one notation means: values of sympy, and several of them as `Items`.

latex2sympy2_extended, the parser of math-verify, reads each value. Lists, brackets, ratios and
names are taken apart before: it drops names, and takes `(1, 2)` for an interval.
"""

import re
from functools import lru_cache
from itertools import product
from typing import Any

from latex2sympy2_extended import NormalizationConfig, latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from sympy import Eq, Expr, Float, Intersection, MatrixBase, Rational, S, Set, Symbol, Union
from sympy.logic.boolalg import Boolean

from .forms import Items, attempt, forms

# math-verify's own reading of units takes letters for them; and without case, R is r.
_NORMALIZATION = NormalizationConfig(malformed_operators=True, boxed="none")
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_CONSTANTS = {Symbol("e", real=True): S.Exp1, Symbol("i", real=True): S.ImaginaryUnit}
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_WORDS = {word: S(value) for value, word in enumerate(_NUMBERS)} | {
    "no solution": S.EmptySet, "empty set": S.EmptySet, "infinity": S.Infinity, "all real numbers": S.Reals,
}  # fmt: skip
# What the parser would misread, as it drops what it does not know.
_UNREADABLE = (
    r"\\text|\\angle|\\triangle|\\bar|\\overline|['\":]"  # words, figures, conjugates, primes
    r"|^[A-Z]{2,}$|(?<![A-Za-z\\])(?![A-Za-z]?matrix)[A-Za-z]{4,}"  # names, which are no products
    r"|(?<![A-Za-z\\])[A-Za-z]{3} [A-Za-z]{2}"
    r"|(?:^|[=,])\s*-?[\d.]+\s+\d|\.\d*\."  # 1 2 is not 12
    r"|\d\s*_|\)\s*_"  # digits with a base, falling factorials
    r"|\d{4}-\d\d-\d\d"  # dates
    r"|\\infty\s*\]|\[\s*-\s*\\infty"  # closed at infinity
)
_WORD = r"(?:\\text\s*\{{[\s,]*|(?<![A-Za-z\\])){}(?:\s*\}}|(?![A-Za-z]))"
_AND, _OR = _WORD.format("and"), _WORD.format("or")
_BUILDER = r"\\\{\s*[a-z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid|\||:)(.*)\\\}"
# What a value is the value of: names and their sums, values of functions, lengths; and points.
_NAME = r"(?:\\[A-Za-z]+|[A-Za-z]|[A-Z]{2,}|[A-Za-z]{4,})(?:_\w|_\{[^{}]*\})?"
_NAMED = (
    rf"({_NAME}(?:\s*\+\s*{_NAME})*|[A-Zf-hpq]'*\s*\([^()]*\)|\(\s*{_NAME}(?:,\s*{_NAME})+\s*\)|\|[A-Z]{{1,2}}\|"
    r"|\\frac\{d\w\}\{d\w\}|\\angle\s*[A-Z]+|\\overline\{[A-Z]+\})\s*=\s*(.+)|([A-Z])\s*(\([^()]*,.*\))"
)


@lru_cache(maxsize=256)
def readings(text: str) -> list[tuple[str, Any]]:
    """Return what a text may mean, each with its name: `y = 2x` is a value and an equation."""
    # of 1,000 both the number and the list
    joined = re.sub(r"(?<=\d)(?<!\b0),(?=\d{3}(?:,\d{3})*(?![\d,]))", "", text)
    found = [read(each) for each in {joined: 1, text: 1}] + [
        ("", leaf(text) if "=" in text else None)
    ]
    return [each for each in found if each[1] is not None]


def read(text: str) -> tuple[str, Any]:
    """Return the name of a value, "" without one, and the value: of sympy, or Items; None for no
    mathematics."""
    several = parts(text)
    if len(several) > 1:
        return _joined(text, [read(part) for part in several])
    if match := re.fullmatch(_NAMED, text):
        return match[1] or match[3], read(match[2] or match[4])[1]
    if match := re.fullmatch(_BUILDER, text):
        return read(match[1])
    sides = [leaf(side) for side in parts(text, "=")]
    if len(sides) > 1 and all(
        isinstance(side, Expr) and forms(side) == forms(sides[0]) for side in sides
    ):
        return "", sides[0]  # 2 + 3 = 5
    ratio = [leaf(side) for side in parts(text, ":")]
    if len(ratio) > 1 and None not in ratio:
        return "", Items("::", [each / ratio[0] for each in ratio]) if len(ratio) > 2 else ratio[
            0
        ] / ratio[1]
    if match := re.fullmatch(r"\\?([{(\[])([^|:]*?)\\?([)}]|(?<!\\infty)\])", text):
        inside = [read(part)[1] for part in parts(match[2])]
        if None not in inside and len(inside) > (match[1] != "{"):
            is_value = len(inside) == 1 and isinstance(inside[0], Expr)
            return "", inside[0] if is_value else Items(match[1] + match[3], inside)
    tree = leaf(text)
    if (
        isinstance(tree, Boolean)
        and not isinstance(tree, (Eq, Expr))
        and len(tree.free_symbols) < 2
    ):
        return "".join(map(str, tree.free_symbols)), tree.as_set()
    return "", tree


def _joined(text: str, pairs: list[tuple[str, Any]]) -> tuple[str, Any]:
    """Return a list; `x = 1, y = 2` has the order of its names, and `x = 1, -1` has none."""
    names, trees = zip(*sorted(pairs, key=lambda pair: pair[0]), strict=True)
    if None in trees:
        return "", None
    if all(isinstance(tree, Set) for tree in trees) and len({*names}) == 1:
        meet = Intersection(*trees)
        is_union = re.search(_OR, text) or (meet.is_empty and not re.search(_AND, text))
        return names[0], Union(*trees) if is_union else meet
    is_set = len({*names} - {""}) == 1
    return "", Items("{}" if is_set else "()" if len({*names}) == len(names) else "list", [*trees])


def parts(text: str, separator: str = rf"[,;]|{_AND}|{_OR}") -> list[str]:
    """Split a text at the separators outside all brackets; a plus-minus is two parts."""
    depth, found = 0, [""]
    for token in re.findall(rf"(?s)\\text\s*\{{[^{{}}]*\}}|{separator}|.", text):
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


@lru_cache(maxsize=256)
def leaf(text: str) -> Any:
    """Return a value of sympy with exact numbers; None for what is no mathematics."""
    words = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).strip().casefold()
    if words in _WORDS or re.search(_UNREADABLE, text):
        return _WORDS.get(words)
    return attempt(_parse, None, text)


def _parse(text: str) -> Any:
    value = latex2sympy(
        text, is_real=True, normalization_config=_NORMALIZATION, conversion_config=_CONVERSION
    )
    exact = {each: Rational(str(each)) for each in value.atoms(Float)}
    value = value.xreplace(exact).subs(_CONSTANTS)
    if isinstance(value, MatrixBase):
        return Items("()" if 1 in value.shape else f"{value.rows}x{value.cols}", [*value])
    return value
