r"""One notation for the many that models write: a table of rewrites, applied row by row.

Each row has a name, a pattern, what replaces it, and an example with what becomes of it by this row
alone; a test checks every example. What no row knows stays as it is, so that the parser refuses it.
"""

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache
from typing import Any

# Characters of Unicode, and what each of them is in LaTeX.
_SYMBOLS = r"""
    −–—‐‑－⁻₋ -  ÷∕⁄／ /  ∶： :  ，、 ,  （ (  ） )  。 .  ％ \%  ＝ =  ·⋅∙ \cdot  ×✕ \times  °º ^\circ  ≤⩽ \le  ≥⩾ \ge
    ≠ \ne  ≈≃ \approx  ± \pm  ∓ \mp  ≡ \equiv  ∅ \emptyset  ∪ \cup  ∩ \cap  ∈ \in  ∞ \infty  ∨ \lor  ∧ \land
    ⟨ \langle  ⟩ \rangle  ∠ \angle  ℝ \mathbb{R}  ℤ \mathbb{Z}  ℕ \mathbb{N}  √ \sqrt  ∛ \sqrt[3]  € \euro
    £￡ \sterling  ¥￥ \yen  ₹ \rupee  ¢ \text{cents}  π \pi  θ \theta  α \alpha  β \beta  λ \lambda  μ \mu  σ \sigma
    φ \phi  ω \omega  
""".split()
_CHARACTERS = str.maketrans(
    dict.fromkeys("\u00a0\u2009\u202f\u3000\t\n\r", " ")
    | {"或": " or ", "和": " and "}
    | {
        character: meaning + " " * (meaning[0] == "\\")
        for characters, meaning in zip(_SYMBOLS[::2], _SYMBOLS[1::2], strict=True)
        for character in characters
    }
)
_NUMBER = re.compile(r"-?\d{1,30}(?:\.\d{1,5}|/0*[1-9]\d{0,29})?")
# 1.234,56 and 1 234,56: what parts thousands where decimals follow a comma
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:[.\s\u00a0\u202f]\d{3})+(?=,\d)")
_DECIMAL_COMMA = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d)")


def _repeating(match: re.Match[str]) -> str:
    """Return a decimal that repeats as a fraction; its decimals are fixed ones and a block."""
    whole, fixed, block = match.groups()
    numerator = int(whole + fixed + block) - int("0" + whole + fixed)
    value = Fraction(numerator, 10 ** len(fixed) * (10 ** len(block) - 1))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _vulgar(match: re.Match[str]) -> str:
    """Return the character of a fraction as one."""
    return r"\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", match[0]).split("⁄"))


def _joined(match: re.Match[str]) -> str:
    """Return groups of three digits with commas between them."""
    return ",".join(re.findall(r"\d+", match[0]))


_NESTED = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"
_TEXT = (
    r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf|cal)|boldsymbol|operatorname|mbox|bm|fbox)"
)
# In this order.
# fmt: off
REWRITES: list[tuple[str, str, Any, str, str]] = [
    # what is only look
    ("new lines", r"\\\\\s*(?:\[-?[\d.]+\s*[a-z]{2}\])?", r"\\cr ", r"1 \\[4pt] 2", r"1 \cr  2"),
    ("sizes", r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|bf|rm|quad|qquad|limits)(?![A-Za-z])", " ",
     r"\left(1\right)", " (1 )"),
    ("delimiters of mathematics", r"\\[()\[\]]|(?<!\\)\$(?!\s*[\d.,]+$)|\*\*|\\!", "", r"\(x\)", "x"),
    ("colours", r"\\(?:text)?color\{\w+\}|\\phantom\{[^{}]*\}", "", r"\color{red}5", "5"),
    ("frames", r"\\(?:boxed|underline|fbox|ensuremath)\s*\{((?:[^{}]|\{[^{}]*\})*)\}", r"\1", r"\fbox{7}", "7"),
    ("escapes of blanks", r"\s*(?:\\[;: ]|\\,(?!\d{3})|~)\s*", " ", r"5\ m", "5 m"),
    ("what is real", r"^[a-z]\s*\\in\s*\\mathbb\s*\{?R\}?\s*,|,\s*[a-z]\s*\\in\s*\\mathbb\s*\{?R\}?\s*(?=\\\}|$)", "",
     r"x \ne 1, x \in \mathbb{R}", r"x \ne 1"),
    ("what contains an element", r"^[a-z]\s*\\in\s*(?=\\\{|[(\[]|\\mathbb)", "", r"x \in (0, 1)", "(0, 1)"),
    ("brackets by name", r"\\[lr]([bv])(?:race|ert)(?![a-z])", lambda m: "|" if m[1] == "v" else rf"\{'{' if m[0][1] == 'l' else '}'}",
     r"\lbrace 1 \rbrace", r"\{ 1 \}"),
    ("angle brackets", r"\\langle(.*)\\rangle", r"(\1)", r"\langle 2, 5 \rangle", "( 2, 5 )"),
    # numbers
    ("two digits of a fraction", r"(\\[dtc]?frac)\s*(\d)\s*(\d)", r"\1{\2}{\3}", r"\frac12", r"\frac{1}{2}"),
    ("fractions of other size", r"\\[dtc]frac|(?<![\\a-z])f?rac(?=\{)", r"\\frac", r"\dfrac{1}{2}", r"\frac{1}{2}"),
    ("repeating, by a bar", r"(\d{0,9})\.(\d{0,9}?)\\(?:overline|bar|dot)\s*\{?(\d{1,9})\}?", _repeating, r"0.1\overline{6}", r"\frac{1}{6}"),
    ("repeating, by brackets", r"(?<!\d)(\d{0,9})\.(\d{0,9})\((\d{1,9})\)(?=\s*(?:\\%)?$)", _repeating, "0.(6)", r"\frac{2}{3}"),
    ("repeating, by dots", r"(\d{0,9})\.(\d{0,9}?)(\d{1,6}?)\3+\s*(?:\.{3,}|\\[lc]?dots)$", _repeating, "0.333...", r"\frac{1}{3}"),
    ("powers of ten", r"^(-?\d[\d.]*)[eE]([+-]?\d{1,3})$", r"\1\\cdot 10^{\2}", "1.5e3", r"1.5\cdot 10^{3}"),
    ("mixed numbers", r"^(-?)(\d+)\s+(\d+)\s*/\s*(\d+)$", r"\1(\2+\\frac{\3}{\4})", "1 1/2", r"(1+\frac{1}{2})"),
    ("thousands, by commas of LaTeX", r"(?<=\d)(?:\{,\}|,\\!|\\,)(?=\d{3}(?!\d))", ",", r"1{,}000", "1,000"),
    ("thousands, by blanks", r"(?<![\d.^_] )(?<![\d.^_,])[1-9]\d{0,2}(?: \d{3})+(?=\s*(?:$|\\|\.\d))", _joined, "250 000", "250,000"),
    ("ordinal numbers", r"(\d)\s*(?:\^\s*\{)?\s*\\(?:text|mathrm)\s*\{\s*(?:st|nd|rd|th)\s*\}\}?", r"\1 ", r"5^{\text{th}}", "5 "),
    ("combinations", r"(?:\\text|\\mathrm)?\{?\bC\}?\s*_\{?(\d{1,4})\}?\s*\^\{?(\d{1,4})\}?", lambda m: rf"\binom{{{m[1]}}}{{{m[2]}}}" if int(m[1]) >= int(m[2]) else m[0], "C_5^2", r"\binom{5}{2}"),
    ("binomials of other size", r"\\[dt]binom", r"\\binom", r"\dbinom{5}{2}", r"\binom{5}{2}"),
    ("a factor before a binomial", r"(?<=\d)\s*(?=\\binom)", r"\\cdot ", r"2\binom{5}{2}", r"2\cdot \binom{5}{2}"),
    # currencies, units and percent
    ("dollars", r"\\text\s*\{\s*\\?\$\s*\}|\\\$|\$", r"\\dollar ", r"\$5", r"\dollar 5"),
    ("pounds", r"\\pounds(?![a-z])", r"\\sterling", r"\pounds 5", r"\sterling 5"),
    ("a currency before its amount", r"(?:\\text\s*\{)?\s*\\(dollar|euro|sterling|yen|rupee)\s*\}?\s*(\d[\d.,]*)(?![^a-z\s\\}])", r"\2\\text{ \1}", r"\euro 5", r"5\text{ euro}"),
    ("a currency after its amount", r"\\(dollar|euro|sterling|yen|rupee)(?![a-z])", r"\\text{ \1}", r"5\euro", r"5\text{ euro}"),
    ("percent in words", r"(?:\\text\s*\{)?\s*\bper\s?cent(?:age)?\s*\}?$|(?<!\\)%", r"\\%", r"5\text{ percent}", r"5\%"),
    ("degrees of an argument", r"(\\(?:sin|cos|tan|cot)\s*[({]?\s*)(\d+)\s*\^\s*\{?\s*\\circ\s*\}?", r"\1{\\frac{\2\\pi}{180}}", r"\sin 30^\circ", r"\sin {\frac{30\pi}{180}}"),
    ("degrees", r"\^\s*\{?\s*\\circ\s*\}?\s*(?:\\text\{\s*[CF]\s*\}|[CF])?\s*$|\\degree", r"\\text{ degrees}", r"45^\circ", r"45\text{ degrees}"),
    # letters and words
    ("letters in another font", rf"(?<!\d)(?<![\d}}] ){_TEXT}\s*\{{\s*([A-Za-z]|-?\d[\d.,]*)\s*\}}", r" \1 ", r"\mathrm{A}", " A "),
    ("letters that are no unit", rf"{_TEXT}\s*\{{\s*([abcdefijknopqrtuvwxyzBDEFGHILMOPQRSTUXYZ]|[A-Z]{{2}})\s*\}}", r" \1 ", r"2\mathrm{e}", "2 e "),
    ("words in another font", rf"{_TEXT}(?=\s*\{{)", r"\\text", r"\mathrm{cm}", r"\text{cm}"),
    ("a font around mathematics", r"\\text\s*\{((?:[^{}]|\{[^{}]*\})*\\frac(?:[^{}]|\{[^{}]*\})*)\}", r"\1", r"\text{\frac{1}{2}}", r"\frac{1}{2}"),
    ("vectors", r"\\vec\s*\{?\s*(\w)\s*\}?", r"\1", r"\vec{a}", "a"),
    ("functions without a backslash", r"(?<![\\A-Za-z{])(pi|sqrt|(?:arc)?(?:sin|cos|tan)|log|ln|exp)(?![A-Za-z])", r"\\\1", "sin x", r"\sin x"),
    ("roots by brackets", r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", r"\sqrt(2)", r"\sqrt{2}"),
    ("roots of a number", r"\\sqrt(\[\d\])?\s*(\d+)", r"\\sqrt\1{\2}", r"\sqrt 12", r"\sqrt{12}"),
    ("common logarithms", r"\\lg(?![a-z])", r"\\log_{10}", r"\lg 2", r"\log_{10} 2"),
    ("natural logarithms", r"\\log_\{?e\}?(?![a-z])", r"\\ln ", r"\log_e 2", r"\ln  2"),
    ("extremes of a set", r"\\(max|min|gcd)\s*\\\{(.*)\\\}", r"\\\1(\2)", r"\max\{1, 2\}", r"\max(1, 2)"),
    # relations, lists and sets
    ("signs of relations", r"\\([gl])(?:eqslant|eq)(?![a-z])", r"\\\1e ", r"x \leq 1", r"x \le  1"),
    ("unequal", r"\\neq(?![a-z])", r"\\ne ", r"x \neq 1", r"x \ne  1"),
    ("empty sets", r"\\varnothing(?![a-z])|\\\{\s*\\\}", r"\\emptyset ", r"\{ \}", r"\emptyset "),
    ("colons", r"\{:\}|\\colon(?![a-z])", ":", r"1{:}2", "1:2"),
    ("and, or by a sign", r"\\(?:lor|vee)(?![a-z])", " or ", r"x \lor y", "x  or  y"),
    ("and by a sign", r"\\(?:land|wedge)(?![a-z])", " and ", r"x \land y", "x  and  y"),
    ("open intervals by turned brackets", r"^\]\s*([^\[\]]*)\[$", r"(\1)", "]-1, 1[", "(-1, 1)"),
    ("intervals open on the left", r"^\]\s*([^\[\]]*)\]$", r"(\1]", "]0, 1]", "(0, 1]"),
    ("intervals open on the right", r"^\[\s*([^\[\]]*)\[$", r"[\1)", "[0, 1[", "[0, 1)"),
    ("arrays in brackets", r"[(\[]\s*\\begin\{array\}(?:\{[lcr ]*\})?(.*)\\end\{array\}\s*[)\]]", r"\\begin{pmatrix}\1\\end{pmatrix}",
     r"(\begin{array}{c}1\end{array})", r"\begin{pmatrix}1\end{pmatrix}"),
    ("lines of equations", r"\\begin\{(?:cases|aligned|array)\}(?:\{\w+\})?(.*)\\end\{\w+\}", lambda m: m[1].replace("&", " ").replace(r"\cr", ","),
     r"\begin{cases} x \cr y \end{cases}", r" x , y "),
    ("for all", r"(?:,\s*|\\text\s*\{\s*|\(\s*|(?=\\forall)|\bfor (?=all))(?:\\forall|for (?:all|any|every)|where)\b.*$", "", r"x, \forall x", "x"),
    ("what an integer is", r"(?:,\s*|\()[kmn]\s*\\in\s*\\mathbb\{?[ZN]\}?(?:\^\+)?\)?\s*$", "", r"2k, k \in \mathbb{Z}", "2k"),
    # what is left
    ("braces of an index", r"_\s*\{?\(?(?:\\text\s*\{)?\s*(\w+)\s*\}?\)?\}?$|_\{(\w)\}", r"_\1\2", "x_{1}", "x_1"),
    ("digits in brackets before their base", r"^\((\d+)\)(?=_)", r"\1", "(1010)_2", "1010_2"),
    ("braces around everything", rf"^\{{({_NESTED})\}}$", r"\1", "{17}", "17"),
    ("ratios in words", r"(\d+)\s*(?:\\text\s*\{)?\s*to\b\s*\}?\s*(\d+)", r"\1:\2", r"3\text{ to }2", "3:2"),
    ("a value in words", r"^\\text\s*\{\s*(-?[\d.,:()\s]*[\d)])\s*([A-Za-z ]*)\}$", r"\1\\text{ \2}", r"\text{5 apples}", r"5\text{ apples}"),
    ("the answer, in Chinese", r"(?:\\text\s*\{\s*)?答案\s*[是为:]*\s*\}?", "", r"\text{答案:}7", "7"),
    ("stars", r"(?<!\*)\*(?!\*)", r"\\cdot ", "2*3", r"2\cdot 3"),
    ("a factor before brackets", r"(?:(?<=^\d)|(?<=[=\s]\d))(?=\()", r"\\cdot ", "2(x+1)", r"2\cdot (x+1)"),
    ("a sign before everything", r"^\s*(?:=|\\approx|\\sim)", "", "= 5", " 5"),
    ("a full stop behind everything", r"(?:\\cr)?\s*\\?[\s.,;]*$", "", "5.", "5"),
    ("new lines again", r"\\cr(?![a-z])", r"\\\\", r"1 \cr 2", r"1 \\ 2"),
]
# fmt: on
_COMPILED = [(re.compile(pattern, re.DOTALL), new) for _, pattern, new, _, _ in REWRITES]


@lru_cache(maxsize=1024)
def plain(text: str) -> str:
    """Return a text in one notation."""
    text = re.sub("[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒]", _vulgar, text)
    text = re.sub("([⁰¹²³⁴-⁹⁺⁻ⁿ]+)", r"^{\1}", re.sub("([₀-₉₊₋ₙ]+)", r"_{\1}", text))
    text = unicodedata.normalize("NFKC", text.translate(_CHARACTERS))
    for pattern, replacement in _COMPILED:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def plain_number(text: str) -> Fraction | None:
    """Return the value of an integer, a short decimal or a fraction of digits; None for all else.

    >>> plain_number(r"\\frac{3}{4}")
    Fraction(3, 4)
    """
    text = re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text)
    return Fraction(text) if _NUMBER.fullmatch(text) else None


def with_points(text: str) -> str:
    """Return a text with decimal points for the commas inside its numbers.

    >>> with_points("15,50 €, or 1.234,5")
    '15.50 €, or 1234.5'
    """
    return _DECIMAL_COMMA.sub(".", _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text))
