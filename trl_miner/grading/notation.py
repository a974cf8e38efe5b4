r"""One notation for the many that models write: a table of rewrites, applied row by row.

What no row knows stays as it is, so that the parser refuses it.
"""

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

# Characters of Unicode, and what each of them is in LaTeX.
_SYMBOLS = r"""
    −–—‐‑－⁻₋ -  ÷∕⁄／ /  ∶： :  ，、 ,  （ (  ） )  。 .  ％ \%  ＝ =  ·⋅∙ \cdot  ×✕ \times  °º ^\circ  ≤⩽ \le  ≥⩾ \ge
    ≠ \ne  ≈≃ \approx  ± \pm  ∓ \mp  ≡ \equiv  ∅ \emptyset  ∪ \cup  ∩ \cap  ∈ \in  ∞ \infty  ∨ \lor  ∧ \land
    ⟨ \langle  ⟩ \rangle  ∠ \angle  ℝ \mathbb{R}  ℤ \mathbb{Z}  ℕ \mathbb{N}  √ \sqrt  ∛ \sqrt[3]  € \euro
    £￡ \sterling  ¥￥ \yen  ₹ \rupee  ¢ \text{cents}  π \pi  θ \theta  α \alpha  β \beta  λ \lambda  μ \mu  σ \sigma
    φ \phi  ω \omega  或 \lor  和 \land  ½ \frac{1}{2}  ⅓ \frac{1}{3}  ⅔ \frac{2}{3}  ¼ \frac{1}{4}  ¾ \frac{3}{4}
    ⅕ \frac{1}{5}  ⅖ \frac{2}{5}  ⅗ \frac{3}{5}  ⅘ \frac{4}{5}  ⅙ \frac{1}{6}  ⅚ \frac{5}{6}  ⅛ \frac{1}{8}
    ⅜ \frac{3}{8}  ⅝ \frac{5}{8}  ⅞ \frac{7}{8}
""".split()
# In this order: a name, a pattern, what replaces it, and an example with what this row alone makes of it, which a
# test checks. ␣ is a blank at a border, FONT a command for a font, (...) braces and what is in them, ¦ a bar.
_TABLE = r"""
new lines                     | \\\\\s*(?:\[-?[\d.]+\s*[a-z]{2}\])? | \\cr␣ | 1 \\[4pt]2 | 1 \cr 2
sizes                         | \\(?:left|right|[bB]igg?[lr]?|displaystyle|bf|rm|q?quad|limits)(?![A-Za-z]) | ␣ | \left(1 | ␣(1
delimiters of mathematics     | \\[()\[\]]|(?<!\\)\$(?!\s*[.,]?\d[\d.,]*$)|\*\*|\\! | | \(x\) | x
colours                       | \\(?:text)?color\{\w+\}|\\phantom\{[^{}]*\} | | \color{red}5 | 5
frames                        | \\(?:boxed|underline|fbox)\s*(...) | \1 | \fbox{7} | 7
escapes of blanks             | \s*(?:\\[;: ]|\\,(?!\d{3})|~)\s* | ␣ | 5\ m | 5 m
what is real                  | ^[a-z]\s*\\in\s*\\mathbb\{?R\}?\s*,|,\s*[a-z]\s*\\in\s*\\mathbb\{?R\}?\s*(?=\\\}|$) | | x > 1, x \in \mathbb{R} | x > 1
what contains an element      | ^[a-z]\s*\\in\s*(?=\\\{|[(\[]|\\mathbb) | | x \in (0, 1) | (0, 1)
opening braces by name        | \\lbrace(?![a-z]) | \\{ | \lbrace 1 | \{ 1
closing braces by name        | \\rbrace(?![a-z]) | \\} | 1 \rbrace | 1 \}
bars by name                  | \\[lr]vert(?![a-z]) | ¦ | \lvert 1 | ¦ 1
angle brackets                | \\langle(.*)\\rangle | (\1) | \langle 2, 5 \rangle | ( 2, 5 )
two digits of a fraction      | (\\[dtc]?frac)\s*(\d)\s*(\d) | \1{\2}{\3} | \frac12 | \frac{1}{2}
fractions of other size       | \\[dtc]frac|(?<![\\a-z])f?rac(?=\{) | \\frac | \dfrac{1}{2} | \frac{1}{2}
repeating, by a bar           | (\d{0,9})\.(\d{0,9}?)\\(?:overline|bar|dot)\s*\{?(\d{1,9})\}? | FRACTION | 0.1\overline{6} | \frac{15}{90}
repeating, by brackets        | (?<!\d)(\d{0,9})\.(\d{0,9})\((\d{1,9})\)(?=\s*(?:\\%)?$) | FRACTION | 0.(6) | \frac{6}{9}
repeating, by dots            | (\d{0,9})\.(\d{0,9}?)(\d{1,6}?)\3+\s*(?:\.{3,}|\\[lc]?dots)$ | FRACTION | 0.333... | \frac{3}{9}
powers of ten                 | ^(-?\d[\d.]*)[eE]([+-]?\d{1,3})$ | \1\\cdot 10^{\2} | 1.5e3 | 1.5\cdot 10^{3}
mixed numbers                 | ^(-?)(\d+)\s+(\d+)\s*/\s*(\d+)$ | \1(\2+\\frac{\3}{\4}) | 1 1/2 | (1+\frac{1}{2})
thousands, by LaTeX's commas  | (?<=\d)(?:\{,\}|\\,)(?=\d{3}(?!\d)) | , | 1{,}000 | 1,000
thousands, by blanks          | (?:(?<=^\d)|(?<=^\d\d)|(?<=^\d{3})|(?<= \d{3})) (?=\d{3}(?: \d{3})*(?:$|\\|\.\d)) | , | 250 000 | 250,000
ordinal numbers               | (\d)\s*(?:\^\s*\{)?\s*FONT\s*\{\s*(?:st|nd|rd|th)\s*\}\}? | \1␣ | 5^{\text{th}} | 5␣
combinations                  | (?:FONT)?\{?\bC\}?\s*_\{?([3-9]|\d{2,4})\}?\s*\^\{?(\d{1,4})\}? | \\binom{\1}{\2} | C_5^2 | \binom{5}{2}
binomials of other size       | \\[dt]binom | \\binom | \dbinom{5}{2} | \binom{5}{2}
a factor before a binomial    | (?<=\d)\s*(?=\\binom) | \\cdot␣ | 2\binom{5}{2} | 2\cdot \binom{5}{2}
dollars                       | FONT\s*\{\s*\\?\$\s*\}|\\\$|\$ | \\dollar␣ | \$5 | \dollar 5
pounds                        | \\pounds(?![a-z]) | \\sterling | \pounds 5 | \sterling 5
currencies before an amount   | (?:FONT\s*\{)?\s*\\(dollar|euro|sterling|yen|rupee)\s*\}?\s*(\d[\d.,]*)(?![^a-z\s\\}]) | \2\\text{ \1} | \euro 5 | 5\text{ euro}
currencies behind an amount   | \\(dollar|euro|sterling|yen|rupee)(?![a-z]) | \\text{ \1} | 5\euro | 5\text{ euro}
percent in words              | (?:FONT\s*\{)?\s*\bper\s?cent(?:age)?\s*\}?$|(?<!\\)% | \\% | 5\text{ percent} | 5\%
degrees of an argument        | (\\(?:sin|cos|tan|cot)\s*[({]?\s*)(\d+)\s*\^\s*\{?\s*\\circ\s*\}? | \1{\\frac{\2\\pi}{180}} | \sin 30^\circ | \sin {\frac{30\pi}{180}}
degrees                       | \^\s*\{?\s*\\circ\s*\}?\s*(?:FONT\{\s*[CF]\s*\}|[CF])?\s*$|\\degree | \\text{ degrees} | 45^\circ | 45\text{ degrees}
letters in another font       | (?<!\d)(?<![\d}] )FONT\s*\{\s*([A-Za-z]|-?\d[\d.,]*)\s*\} | ␣\1␣ | \mathrm{A} | ␣A␣
letters that are no unit      | FONT\s*\{\s*([abcdefijknopqrtuvwxyzBDEFGHILMOPQRSTUXYZ]|[A-Z]{2})\s*\} | ␣\1␣ | 2\mathrm{e} | 2 e␣
words in another font         | FONT(?=\s*\{) | \\text | \mathrm{cm} | \text{cm}
a font around mathematics     | \\text\s*(?=\{\\frac)(...) | \1 | \text{\frac{1}{2}} | \frac{1}{2}
vectors                       | \\vec\s*\{?\s*(\w)\s*\}? | \1 | \vec{a} | a
functions without a backslash | (?<![\\A-Za-z{])(pi|sqrt|(?:arc)?(?:sin|cos|tan)|log|ln|exp)(?![A-Za-z]) | \\\1 | sin x | \sin x
roots by brackets             | \\sqrt\s*\(([^()]*)\) | \\sqrt{\1} | \sqrt(2) | \sqrt{2}
roots of a number             | \\sqrt(\[\d\])?\s*(\d+) | \\sqrt\1{\2} | \sqrt 12 | \sqrt{12}
common logarithms             | \\lg(?![a-z]) | \\log_{10} | \lg 2 | \log_{10} 2
natural logarithms            | \\log_\{?e\}?(?![a-z]) | \\ln | \log_e 2 | \ln 2
extremes of a set             | \\(max|min|gcd)\s*\\\{(.*)\\\} | \\\1(\2) | \max\{1, 2\} | \max(1, 2)
signs of relations            | \\([gl])(?:eqslant|eq)(?![a-z]) | \\\1e | x \leq 1 | x \le 1
unequal                       | \\neq(?![a-z]) | \\ne | x \neq 1 | x \ne 1
empty sets                    | \\varnothing(?![a-z])|\\\{\s*\\\} | \\emptyset | \{ \} | \emptyset
colons                        | \{:\}|\\colon(?![a-z]) | : | 1{:}2 | 1:2
or                            | \\(?:lor|vee)(?![a-z])|FONT\s*\{\s*or\s*\} | ␣or␣ | x \lor y | x  or  y
and                           | \\(?:land|wedge)(?![a-z])|FONT\s*\{[,\s]*and\s*\} | ␣and␣ | x \land y | x  and  y
open intervals                | ^\]\s*([^\[\]]*)\[$ | (\1) | ]-1, 1[ | (-1, 1)
intervals open on the left    | ^\]\s*([^\[\]]*)\]$ | (\1] | ]0, 1] | (0, 1]
intervals open on the right   | ^\[\s*([^\[\]]*)\[$ | [\1) | [0, 1[ | [0, 1)
arrays in brackets            | [(\[]\s*\\begin\{array\}(?:\{[lcr ]*\})?(.*)\\end\{array\}\s*[)\]] | \\begin{pmatrix}\1\\end{pmatrix} | [\begin{array}{c}1\end{array}] | \begin{pmatrix}1\end{pmatrix}
lines of equations            | \\(?:begin|end)\{(?:cases|aligned|array)\}(?:\{\w+\})? | | \begin{cases} x \end{cases} | ␣x␣
ends of lines                 | \\cr(?![a-z])(?!.*matrix\}) | , | x \cr y | x , y
columns                       | &(?!.*matrix\}) | ␣ | x &= 1 | x  = 1
for all                       | (?:,\s*|\\text\s*\{\s*|\(\s*|(?=\\forall)|\bfor (?=all))(?:\\forall|for (?:all|any|every)|where)\b.*$ | | x, \forall x | x
what an integer is            | (?:,\s*|\()[kmn]\s*\\in\s*\\mathbb\{?[ZN]\}?(?:\^\+)?\)?\s*$ | | 2k, k \in \mathbb{Z} | 2k
braces of an index            | _\s*\{?\(?(?:FONT\s*\{)?\s*(\w+)\s*\}?\)?\}?$|_\{(\w)\} | _\1\2 | x_{1} | x_1
brackets before a base        | ^\((\d+)\)(?=_) | \1 | (1010)_2 | 1010_2
braces around everything      | ^(...)$ | \1 | {17} | 17
ratios in words               | (\d+)\s*(?:\\text\s*\{)?\s*to\b\s*\}?\s*(\d+) | \1:\2 | 3\text{ to }2 | 3:2
a value in words              | ^\\text\s*\{\s*(-?[\d.,:()\s]*[\d)])\s*([A-Za-z ]*)\}$ | \1\\text{ \2} | \text{5 apples} | 5\text{ apples}
counters, in Chinese          | (?<=\d)\s*(?:FONT\{)?\s*[个只人]\s*\}? | | 6\text{个} | 6
square centimetres            | (?:FONT\{)?\s*平方厘米\s*\}? | \\text{ cm}^2 | 6平方厘米 | 6\text{ cm}^2
centimetres                   | (?:FONT\{)?\s*厘米\s*\}? | \\text{ cm} | 6厘米 | 6\text{ cm}
metres                        | (?:FONT\{)?\s*米\s*\}? | \\text{ m} | 6米 | 6\text{ m}
the answer, in Chinese        | (?:\\text\s*\{\s*)?答案\s*[是为:]*\s*\}? | | \text{答案:}7 | 7
stars                         | (?<!\*)\*(?!\*) | \\cdot␣ | 2*3 | 2\cdot 3
a factor before brackets      | (?:(?<=^\d)|(?<=[=\s]\d))(?=\() | \\cdot␣ | 2(x+1) | 2\cdot (x+1)
a sign before everything      | ^\s*(?:=|\\approx|\\sim) | | =5 | 5
a full stop                   | (?:\\cr|,)?\s*\\?[\s.,;]*$ | | 5. | 5
new lines again               | \\cr(?![a-z]) | \\\\ | 1 \cr 2 | 1 \\ 2
"""  # noqa: E501
_BRACES = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
_FONT = r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf|cal)|boldsymbol|operatorname|mbox|bm)"
REWRITES = [
    [cell.strip().replace("␣", " ").replace("¦", "|") for cell in re.split(r"\s\|(?=\s)", row)]
    for row in _TABLE.replace("(...)", _BRACES).replace("FONT", _FONT).strip().splitlines()
]
_CHARACTERS = {
    ord(character): f"{meaning} "
    for characters, meaning in zip(_SYMBOLS[::2], _SYMBOLS[1::2], strict=True)
    for character in characters
}


@lru_cache(maxsize=1024)
def plain(text: str) -> str:
    """Return a text in one notation."""
    text = re.sub("([⁰¹²³⁴-⁹⁺⁻ⁿ]+)", r"^{\1}", re.sub("([₀-₉₊₋ₙ]+)", r"_{\1}", text))
    text = unicodedata.normalize("NFKC", text.translate(_CHARACTERS))
    for _, pattern, new, _, _ in REWRITES:
        text = rewrite(pattern, new, text)
    return " ".join(text.split())


def rewrite(pattern: str, new: str, text: str) -> str:
    """Apply one row of the table."""
    return re.sub(f"(?s){pattern}", _fraction if new == "FRACTION" else new, text)


def _fraction(match: re.Match[str]) -> str:
    """Return a decimal that repeats as a fraction; its decimals are fixed ones and a block."""
    whole, fixed, block = match.groups()
    numerator = int(whole + fixed + block) - int("0" + whole + fixed)
    denominator = 10 ** len(fixed) * (10 ** len(block) - 1)
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def plain_number(text: str) -> Fraction | None:
    """Return the value of an integer, a short decimal or a fraction of digits; None for all else.

    >>> plain_number(r"\\frac{3}{4}")
    Fraction(3, 4)
    """
    text = re.sub(r"^(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}$", r"\1\2/\3", text)
    return (
        Fraction(text) if re.fullmatch(r"-?\d{1,30}(?:\.\d{1,5}|/0*[1-9]\d{0,29})?", text) else None
    )


def with_points(text: str) -> str:
    """Return a text with decimal points for the commas inside its numbers.

    >>> with_points("15,50 €, or 1.234,5")
    '15.50 €, or 1234.5'
    """
    text = re.sub(r"(?<=\d)[.\s\u00a0\u202f](?=(?:\d{3}[.\s\u00a0\u202f]){0,4}\d{3},\d)", "", text)
    return re.sub(r"(?<=\d)(?:,|\{,\})(?=\d)", ".", text)
