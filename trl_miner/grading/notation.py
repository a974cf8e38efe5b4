r"""One notation for many: rewrite what models write in a box to the LaTeX that math-verify reads.

`plain` keeps words, units and currencies, which `words.py` compares; `bare` drops those that no
longer matter, for mathematics. Neither changes a value: what has no fixed meaning is left as it is.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

MAX_CHARACTERS = 1_000  # no gold is as long, and some patterns take quadratic time
_GREEK = dict(
    zip(
        "αβγδεζηθκλμνξπρστφχψωΓΔΘΛΞΠΣΦΨΩϕϵϑ",
        "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi"
        " chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega phi epsilon theta".split(),
        strict=True,
    )
)
_VULGAR = dict(
    zip(
        "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒",
        "12 13 23 14 34 15 25 35 45 16 56 17 18 38 58 78 19 1{10}".split(),
        strict=True,
    )
)
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱˣ", "0123456789+-=()nix", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ₙᵢₓ", "0123456789+-nix", strict=True))
_SYMBOLS = {
    **dict.fromkeys("−–—‐‑‒―－﹣", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000\t\n\r", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u2061\u2062", ""),
    **dict.fromkeys("·⋅∙•", r"\cdot "), **dict.fromkeys("×✕✖", r"\times "), **dict.fromkeys("÷∕⁄／", "/"),
    **dict.fromkeys("∶：", ":"), **dict.fromkeys("°º˚", r"^\circ "), **dict.fromkeys("≤⩽≦", r"\le "),
    **dict.fromkeys("≥⩾≧", r"\ge "), **dict.fromkeys("∅⌀", r"\emptyset "), **dict.fromkeys("≈≃≅", r"\approx "),
    **dict.fromkeys("′’‘", "'"), **dict.fromkeys("“”″", '"'), **dict.fromkeys("，、", ","), **dict.fromkeys("（", "("),
    "）": ")", "；": ";", "。": ".", "％": "%", "＝": "=", "＋": "+", "＜": "<", "＞": ">", "∗": "*", "…": r"\ldots ",
    "⋯": r"\cdots ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∖": r"\setminus ", "∞": r"\infty ",
    "±": r"\pm ", "∓": r"\mp ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}",
    "ℂ": r"\mathbb{C}", "⟨": r"\langle ", "⟩": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ",
    "⌉": r"\rceil ", "∠": r"\angle ", "△": r"\triangle ", "∨": r"\lor ", "∧": r"\land ", "∣": "|", "ℓ": "l",
    "𝑖": "i", "ⅈ": "i", "𝑥": "x", "𝑒": "e", "€": r"\euro ", "£": r"\pounds ", "￡": r"\pounds ", "¥": r"\yen ",
    "￥": r"\yen ", "₹": r"\rupee ", "¢": r"\text{ cents}",
}  # fmt: skip
_CHARACTERS = str.maketrans(
    _SYMBOLS
    | {letter: rf"\{name} " for letter, name in _GREEK.items()}
    | {
        sign: rf"\frac{{{digits[0]}}}{{{digits[1:].strip('{}')}}}"
        for sign, digits in _VULGAR.items()
    }
)

_THOUSAND_POWERS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_BASES = {
    name: number
    for number, name in enumerate(
        "two three four five six seven eight nine ten eleven twelve".split(), start=2
    )
}
_GROUP = r"\{((?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*)\}"  # braces, four deep
_SPACE = r"(?:[\s~]|\\[,;:! ]|\\q?quad(?![A-Za-z]))"
_TEXT = r"\\(?:text(?:normal|bf|it|rm|sf|tt)?|mbox|math(?:rm|it|bf|sf))\s*"
_DOTS = r"(?:\.{3,}|\\[lcd]?dots(?:[bcm])?(?![A-Za-z]))"
_CURRENCY = (
    r"(?:\\?\$|\\(?:pounds|euro|yen|rupee|EUR|texteuro|textsterling|textdollar)(?![A-Za-z]))"
)
_CODES = r"(?:USD|US|EUR|GBP|CAD|AUD|Rs\.?|INR|JPY)"
_ABOUT = r"(?:approximately|approx\.?|about|roughly|around|(?:the )?(?:final )?answer(?: is)?:?)"


def _radical(match: re.Match[str]) -> str:
    index = {"∛": "[3]", "∜": "[4]"}.get(match[1], "")
    inside = match[2]
    return rf"\sqrt{index}{{{inside[1:-1] if inside[0] in '({' else inside}}}"


def _repeating(match: re.Match[str]) -> str:
    r"""0.1\overline{6} -> \frac{1}{6}."""
    whole, fixed, block = match["whole"], match["fixed"], match["block"] or match["digit"]
    if len(fixed + block) > 60:
        return match[0]
    units = Fraction(int((whole or "0") + fixed)) + Fraction(int(block), 10 ** len(block) - 1)
    value = units / 10 ** len(fixed)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _in_words(match: re.Match[str]) -> str:
    r"""\text{5 apples} -> 5\text{ apples}; \text{17} -> 17; \text{\frac12} -> \frac12."""
    content = match[1]
    if content.strip() in ("T", "d"):  # a transpose, a differential
        return content.strip()
    if "\\" in content or "$" in content or not re.search("[A-Za-z]", content):
        return f" {content} "
    if parts := re.fullmatch(r"\s*([-+]?[\d.,/:]*\d)\s*([A-Za-z].*)", content):
        return rf"{parts[1]}\text{{ {parts[2]}}}"
    return rf"\text{{{content}}}"


def _expanded(match: re.Match[str]) -> str:
    plus = match[0].replace(r"\pm", "+").replace(r"\mp", "-")
    return f"{plus}, " + match[0].replace(r"\pm", "-").replace(r"\mp", "+")


Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]


def _rules(*rules: tuple[str, str | Callable[[re.Match[str]], str]]) -> list[Rule]:
    return [(re.compile(pattern), replacement) for pattern, replacement in rules]


_PLAIN = _rules(
    # characters that need their neighbours
    (rf"[{''.join(_RAISED)}]+", lambda match: "^{" + "".join(map(_RAISED.__getitem__, match[0])) + "}"),
    (rf"[{''.join(_LOWERED)}]+", lambda match: "_{" + "".join(map(_LOWERED.__getitem__, match[0])) + "}"),
    (rf"([√∛∜]|(?<![\\A-Za-z])sqrt)\s*({_GROUP}|\((?:[^()]|\([^()]*\))*\)|\d+(?:\.\d+)?|[A-Za-zπ]|\\pi)", _radical),
    (r"(?s).+", lambda match: match[0].translate(_CHARACTERS)),
    # wrappers
    (r"\\(?:boxed|fbox|displaystyle|textstyle|bf|it|rm|[bB]igg?[lr]?)(?![A-Za-z])", " "),
    (rf"\\(?:mathbf|boldsymbol|bm|pmb|underline|mathit|mathsf|textnormal|emph|cancel|color\s*\{{\w+\}}|"
     rf"textcolor\s*\{{\w+\}})\s*{_GROUP}", lambda match: rf"\text{{{match[1]}}}"),
    (rf"{_TEXT}{_GROUP}", _in_words), (rf"{_TEXT}{_GROUP}", _in_words),  # one within the other
    (r"(?<!\\)\$(.*?)(?<!\\)\$", r"\1"),
    (r"^\s*\*\*(.*?)\*\*\s*$", r"\1"),
    # synonyms
    (r"\\\\\s*\[-?[\d.]+\s*[a-z]{2}\]", r"\\\\"),
    (r"\\varnothing|\\O(?![A-Za-z])|\\text\{\s*(?:the )?empty set\s*\}|\\\{\s*\\\}|(?i:^\W*(?:\\text\{)?"
     r"\s*no (?:real |integer )?solutions?(?: exists?)?\.?\s*\}?\W*$)", r"\\emptyset "),
    (r"(?i)^\W*(?:text\{)?\s*all real numbers\.?\s*\}?$|^\W*(?:text\{)?\s*all reals\.?\s*\}?$", r"\\mathbb{R}"),
    (r"(?i)\\text\{\s*([-+]?)\s*(?:positive )?infinity\s*\}", r"\1\\infty "),
    (r"\\lbrace(?![A-Za-z])", r"\\{"), (r"\\rbrace(?![A-Za-z])", r"\\}"),
    (r"\{:\}|\\colon(?![A-Za-z])|\\mathbin\{:\}", ":"),
    (r"(?<=\d)\s*(?:\\text\{\s*)?(?<![A-Za-z])to(?![A-Za-z])(?:\s*\})?\s*(?=\d)", ":"),
    (r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![A-Za-z])|\\degree(?![A-Za-z])", r"^\\circ "),
    (r"\^\s*\{?\s*\\text\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?|(?<=\d)\\text\{\s*(?:st|nd|rd|th)\s*\}", ""),
    (r"\\log_\s*\{?\s*e\s*\}?(?![A-Za-z])", r"\\ln "),
    (r"(?<![\w.\\{])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,4})(?![\w.])", r"\1 \\times 10^{\2}"),
    (r"\\text\{\s*(\w+)\s*\}(?=\s*_)", r"\1"),
    (rf"_\s*\{{?\s*\\text\{{\s*({'|'.join(_BASES)})\s*\}}\s*\}}?", lambda match: f"_{{{_BASES[match[1]]}}}"),
    (r"^\s*\(\s*([0-9A-Za-z]+)\s*\)\s*_", r"\1_"),
    (r"^(.*)\](\s*[^\[\](){}]+,[^\[\](){}]+)\[$", r"\1(\2)"),
    # decimals that repeat
    (r"\\dot\s*\{?(\d)\}?(\d*)\\dot\s*\{?(\d)\}?", r"\\overline{\1\2\3}"),
    (r"(?P<whole>\d*)\.(?P<fixed>\d*)\\(?:overline|bar|overbar|widebar|dot)\s*(?:\{\s*(?P<block>\d+)\s*\}|(?P<digit>\d))",
     _repeating),
    (r"(?<![^-+\s=])(?P<whole>\d*)\.(?P<fixed>\d*)\((?P<block>\d+)\)(?P<digit>)(?=\s*(?:\\?%)?\s*$)", _repeating),
    (rf"(?P<whole>\d*)\.(?P<fixed>\d*?)(?P<block>\d{{1,6}}?)(?P<digit>)(?P=block)+\s*{_DOTS}", _repeating),
    (r"\\langle(?![A-Za-z])([^\\]*(?:\\(?!langle|rangle)[^\\]*)*)\\rangle", r"(\1)"),
    (r"^\s*\\\{\s*([A-Za-z])\s*(?:\\in\s*\\mathbb\{R\}\s*)?(?::|\\mid|\||\\vert)(.*[<>\\].*)\\\}\s*\.?\s*$", r"\2"),
    (r"(?<=\d)\s*(?:\\text\{\s*)?(thousand|million|billion|trillion)(?![A-Za-z])\s*\}?",
     lambda match: rf" \times 10^{{{_THOUSAND_POWERS[match[1]]}}}"),
    (r"(?<=\d)\s+(?!(?:and|or|mod|sin|cos|tan|log|inf)(?![A-Za-z]))([A-Za-z]{3,}(?:\s+[A-Za-z]+)*)\s*\.?\s*$",
     r"\\text{ \1}"),
    # about
    (rf"^{_SPACE}*(?:=|\\(?:approx|simeq|cong|sim|therefore)(?![A-Za-z])|"
     rf"(?i:\\text\{{\s*{_ABOUT}\s*\}}|{_ABOUT}(?![A-Za-z])))", ""),
    # the end of a sentence
    (rf"(?:[.,;:]|{_SPACE}|(?<!\\)\\$)+$", ""), (rf"^{_SPACE}+", ""),
)  # fmt: skip
_BARE = _rules(
    (_CURRENCY, " "),
    (
        rf"^([-+]?)\s*(?:\\text\{{\s*)?{_CODES}\s*\}}?\s*(?=[-+\d.])|(?<=\d)\s*(?:\\text\{{\s*)?{_CODES}\s*\}}?$",
        r"\1",
    ),
    (
        r"^\\text\{\s*(?:[Yy]ear|[Pp]age|[Dd]ay|[Rr]oom|[Aa]nswer:?|[Oo]ption|[Cc]hoice)\s*\}\s*(?=\d)",
        "",
    ),
)
_WORDS = re.compile(
    r"\\(?:text(?:normal|bf|it|rm)?|mbox|math(?:rm|it|bf))\s*\{([^{}]*)\}(?:\^-?\d|\^\{-?\d+\}|\{\^\d\})?"
)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_EXPONENT = re.compile(r"\^\s*\{?\s*-?\d+")
_DIGIT = re.compile(r"\d")
_KEPT = re.compile(r"\d|^\s*(?:and|or)\s*$")
_BLANK = r"(?:[\s~]|\\[,;: ])"
_THOUSANDS = re.compile(rf"(?<![\w.^])[1-9]\d{{0,2}}(?:{_BLANK}+\d{{3}})+(?!\d)")
_MIXED = re.compile(rf"(?<![\w.^])([1-9]\d*){_BLANK}+([1-9]\d*)\s*/\s*([1-9]\d*)")
TRIGONOMETRIC = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\\circ")
_SIGN_INSIDE = re.compile(r"[({].*\\[pm]m.*[)}]")


def characters(text: str) -> str:
    """Return a text with one character, or command of LaTeX, for each dash, blank, sign and letter
    of Unicode."""
    return text.translate(_CHARACTERS)


@lru_cache(maxsize=64)  # a function of its text alone; all rollouts of a prompt have one gold
def plain(content: str) -> str:
    """Return a box's content in plain LaTeX, with the words and units that it has; a very long one
    as it is."""
    if len(content) > MAX_CHARACTERS:
        return content
    for pattern, replacement in _PLAIN:
        content = pattern.sub(replacement, content)
    return content


def bare(content: str) -> str:
    r"""Return plain content without currencies, degrees and ordinals, and with `\frac{1 \pm 2}{3}`
    written twice."""
    for pattern, replacement in _BARE:
        content = pattern.sub(replacement, content)
    if TRIGONOMETRIC.search(content):
        content = _DEGREES.sub(lambda match: rf"{{\frac{{{match[1]}\pi}}{{180}}}}", content)
    content = content.replace(r"^\circ", "")
    if (
        len(re.findall(r"\\pm", content)) == 1
        and _SIGN_INSIDE.search(content)
        and "=" not in content
    ):
        content = re.sub("(?s).+", _expanded, content)
    return _with_whole_numbers(_with_all_numbers(content.strip()))


def _with_all_numbers(content: str) -> str:
    r"""Rewrite what math-verify would cut down to 5: `5\text{ or 6}`, `5\text{ m} + 6\text{ m}`,
    `6\fbox{5}`.

    It takes everything from the first `\text` to the last one for a unit, and a box within the box
    for the answer.
    """
    first = _WORDS.search(content)
    if first is None or not re.search(r"\w", _COMMAND.sub("", content[: first.start()])):
        return content

    def kept(match: re.Match[str]) -> str:
        words = _EXPONENT.sub("", match[1])  # the 2 of cm^2 is no number
        return f" {words} " if _KEPT.search(words) else " "

    rest = _WORDS.sub(kept, content[first.start() :])
    # Between "60 minutes = 1 hour" the words are what makes it true.
    return content[: first.start()] + rest if _DIGIT.search(rest) and "=" not in rest else content


def _with_whole_numbers(content: str) -> str:
    r"""Rewrite what sympy would take for several numbers: `10\,000`, and `1 1/2`, of which 1 would
    remain."""

    def as_fraction(match: re.Match[str]) -> str:
        whole, above, below = match.groups()
        is_proper = max(len(above), len(below)) < 5 and int(above) < int(below)
        return rf"{whole}\frac{{{above}}}{{{below}}}" if is_proper else match[0]

    return _THOUSANDS.sub(
        lambda match: re.sub(r"\D", "", match[0]), _MIXED.sub(as_fraction, content)
    )
