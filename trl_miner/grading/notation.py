r"""The characters and tokens of an answer: one notation for the many that models write.

`tokens` cuts LaTeX, plain text and Unicode into tokens and loses no letter and no digit: what has
no meaning in mathematics stays a token, so that the parser refuses it. Blanks, sizes, colours and
dollar signs around mathematics are dropped.
"""

import re
import unicodedata
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from . import units

MAX_DEPTH = 60  # brackets within brackets; no answer needs as many

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
    "￥": r"\yen ", "₹": r"\rupee ", "¢": r"\text{ cents}", "≡": r"\equiv ", "∀": r"\forall ", "∑": r"\sum ",
    "∏": r"\prod ", "∫": r"\int ",
}  # fmt: skip
_CHARACTERS = str.maketrans(
    _SYMBOLS
    | {letter: rf"\{name} " for letter, name in _GREEK.items()}
    | {
        sign: rf"\frac{{{digits[0]}}}{{{digits[1:].strip('{}')}}}"
        for sign, digits in _VULGAR.items()
    }
)
_FULL_WIDTH = {code: unicodedata.normalize("NFKC", chr(code)) for code in range(0xFF01, 0xFF5F)}


def characters(text: str) -> str:
    """Return a text with one character, or command of LaTeX, for each dash, blank, sign and letter
    of Unicode."""
    return text.translate(_CHARACTERS)


@dataclass(frozen=True)
class Token:
    r"""A token of an answer.

    `kind` is "number", "letter", "word" (letters side by side), "text" (in `\text{}`), "roman" (in
    `\mathrm{}` and the like), "command", "sign" or "rows" (of an environment).
    """

    kind: str
    text: str
    spaced: bool = False  # whether a blank stands before it
    value: Any = field(default=None, compare=False)  # of a number: its value; of rows: cells


class NotRead(Exception):
    """A text is not in the notation that is read."""


_REPEATING = r"(?P<whole>\d*)\.(?P<fixed>\d*)"
_DOTS = r"(?:\.{3,}|\\[lcd]?dots(?:[bcm])?(?![A-Za-z]))"


def _raised(match: re.Match[str]) -> str:
    return "^{" + "".join(map(_RAISED.__getitem__, match[0])) + "}"


def _lowered(match: re.Match[str]) -> str:
    return "_{" + "".join(map(_LOWERED.__getitem__, match[0])) + "}"


def _repeated(match: re.Match[str]) -> str:
    r"""0.1\overline{6} -> \frac{1}{6}."""
    groups = match.groupdict()
    whole, fixed, block = groups["whole"], groups["fixed"], groups["block"] or groups["digit"]
    if len(fixed + block) > 60:
        return match[0]
    units = Fraction(int((whole or "0") + fixed)) + Fraction(int(block), 10 ** len(block) - 1)
    value = units / 10 ** len(fixed)
    return rf"{{\frac{{{value.numerator}}}{{{value.denominator}}}}}"


# In this order.
_REWRITTEN = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # escapes of LaTeX that a program has read as control characters, or has lost with the letter
        ("\x0c(?=[A-Za-z])", r"\\f"), ("\x08(?=[A-Za-z])", r"\\b"), ("\x07(?=[A-Za-z])", r"\\a"),
        ("\x0b(?=[A-Za-z])", r"\\v"), ("\t(?=(?:ext|imes|heta|an|au|riangle|frac|binom)(?![a-z]))", r"\\t"),
        ("\r(?=(?:ight|ho|angle|m)(?![a-z]))", r"\\r"), ("\n(?=(?:eq?|u|abla)(?![a-z]))", r"\\n"),
        (r"(?<![\\A-Za-z])[dt]?f?rac(?=\s*(?:\{|\d))", r"\\frac"), (r"(?<![\\A-Za-z])ext(?=\{)", r"\\text"),
        (r"(?<![\\A-Za-z])inom(?=\{)", r"\\binom"), (r"(?<![\\A-Za-z])egin(?=\{)", r"\\begin"),
        (r"(?<=[\d\s}])imes(?![A-Za-z])", r"\\times "), (r"(?<![\\A-Za-z])qrt(?=\{)", r"\\sqrt"),
        # characters that need their neighbours
        (f"[{''.join(_RAISED)}]+", _raised), (f"[{''.join(_LOWERED)}]+", _lowered),
        ("√", r"\\sqrt "), ("∛", r"\\sqrt[3]"), ("∜", r"\\sqrt[4]"), ("([一-鿿]+)", r"\\text{\1}"),
        # decimals that repeat
        (r"\\dot\s*\{?(\d)\}?(\d*)\\dot\s*\{?(\d)\}?", r"\\overline{\1\2\3}"),
        (rf"{_REPEATING}\\(?:overline|bar|overbar|widebar|dot)\s*(?:\{{\s*(?P<block>\d+)\s*\}}|(?P<digit>\d))",
         _repeated),
        (rf"(?<![^-+\s=]){_REPEATING}\((?P<block>\d+)\)(?=\s*(?:\\?%)?\s*$)", _repeated),
        (rf"{_REPEATING[:-1]}?)(?P<block>\d{{1,6}}?)(?P=block)+\s*{_DOTS}", _repeated),
        # one separator of thousands
        (r"(?<=\d)(?:\{,\}|,\\!)(?=\d{3})", "٬"),
        (r"(?<![\d.٬^_])[1-9]\d{0,2}(?:(?:[\s~]|\\[,; ])+\d{3})+(?!\d)(?<![\s~ ][1-9]\d\d(?=\s*/))",
         lambda match: re.sub(r"[^\d٬]+", "٬", match[0])),
        (r"\{\s*:\s*\}|\\colon(?![A-Za-z])|\\mathbin\{:\}", ":"), (r":\\[!,]", ":"),
        (r"\\\\\s*\[-?[\d.]+\s*[a-z]{2}\]", r"\\\\ "),
    )
]  # fmt: skip


def plain(text: str) -> str:
    """Return a text in the characters of LaTeX."""
    text = text.translate(_FULL_WIDTH)
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    return characters(text)


_DROPPED = {
    *"left right displaystyle textstyle limits nolimits quad qquad bf it rm sf tt hfill".split(),
    *"big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr middle".split(),
    *", ; : ! > ( ) [ ]".split(),
    *("", " "),
}
_TEXTS = {*"text textnormal textbf textit textrm textsf texttt mbox hbox emph textup".split()}
_ROMANS = {*"mathrm operatorname".split()}
_FONTS = {
    *"mathcal mathscr mathfrak mathbf mathit mathsf mathtt boldsymbol bm pmb mathbit mathnormal".split()
}
_WRAPPERS = {*"boxed fbox underline mathstrut framebox".split()}
_SAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "leq": "le", "geq": "ge",
    "leqslant": "le", "geqslant": "ge", "neq": "ne", "lt": "<", "gt": ">", "lbrace": "{", "rbrace": "}", "lbrack": "[",
    "rbrack": "]", "vert": "|", "lvert": "|", "rvert": "|", "mid": "|", "varnothing": "emptyset", "O": "emptyset",
    "vee": "lor", "wedge": "land", "cdotp": "cdot", "ast": "*", "div": "/", "simeq": "approx", "cong": "approx",
    "sim": "approx", "thickapprox": "approx", "to": "rightarrow", "longrightarrow": "rightarrow", "arcctg": "arccot",
    "tg": "tan", "ctg": "cot", "arctg": "arctan", "varphi": "phi", "varepsilon": "epsilon", "vartheta": "theta",
    "bmod": "mod", "dollar": "$", "textdollar": "$", "euro": "euro", "texteuro": "euro", "EUR": "euro", "EURO": "euro",
    "textsterling": "pounds", "degree": "degree", "lang": "langle", "rang": "rangle", "backslash": "setminus",
    "smallsetminus": "setminus", "colon": ":", "dots": "ldots", "cdots": "ldots", "dotsc": "ldots", "Vert": "|",
    "notin": "notin", "isin": "in", "land": "land", "iff": "iff", "Leftrightarrow": "iff", "infin": "infty",
    "gets": "leftarrow", "implies": "rightarrow", "Rightarrow": "rightarrow", "exp": "exp", "Pi": "Pi",
}  # fmt: skip
FUNCTIONS = {
    *"sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth ln log lg exp".split(),
    *"gcd lcm max min det Re Im arg deg".split(),
}  # fmt: skip
# Words of plain text that are commands of LaTeX without their backslash.
_COMMANDS = FUNCTIONS | {
    *"sqrt pi infty alpha beta gamma delta theta lambda sigma omega phi pm times cdot cup cap le ge".split()
}  # fmt: skip
_NAMED = {"infinity": "infty", "inf": "infty", "oo": "infty", "asin": "arcsin", "acos": "arccos"} | {
    "atan": "arctan", "abs": "abs", "binomial": "binom", "mod": "mod", "floor": "floor", "ceil": "ceil",
}  # fmt: skip
_ONE_OR_TWO = re.compile(r"[A-Za-z]|[a-z]{2}")
_ORDINALS = {*"st nd rd th or am pm is no".split()}
_NUMBER = re.compile(
    r"(?:\d{1,3}(?:(?:٬|,(?!\s))\d{3})+(?![\d])|\d+)(?:\.\d+)?(?:(?<=\d)[eE][-+]?\d{1,4}(?![\w.^]))?(?:\.(?=\s*/))?|\.\d+"
)
_LETTERS = re.compile(r"[A-Za-z]+")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.|$)", re.DOTALL)
_LIST = re.compile(r"[1-9]\d\d(?:,[1-9]\d\d)+|[1-9]\d{0,2}(?:,[1-9]\d\d){2,}")


def is_ambiguous(text: str) -> bool:
    """Return whether 101,102 may be a list as well as a number."""
    return any(_LIST.fullmatch(match[0]) for match in _NUMBER.finditer(text))


class _Reader:
    """Cuts one text into tokens."""

    def __init__(self, text: str, as_lists: bool) -> None:
        self.text, self.as_lists = text, as_lists
        self.place, self.depth = 0, 0
        self.tokens: list[Token] = []
        self.spaced = False

    def add(self, kind: str, text: str, value: Any = None) -> None:
        self.tokens.append(Token(kind, text, self.spaced, value))
        self.spaced = False

    def read(self) -> list[Token]:
        while self.place < len(self.text):
            character = self.text[self.place]
            if character in " ~":
                self.spaced, self.place = True, self.place + 1
            elif match := _NUMBER.match(self.text, self.place):
                self._number(match)
            elif match := _LETTERS.match(self.text, self.place):
                self.place = match.end()
                self._letters(match[0])
            elif character == "\\":
                match = _COMMAND.match(self.text, self.place)
                assert match is not None
                self.place = match.end()
                self._command(match[0][1:])
            else:
                self.place += 1
                self._sign(character)
        return self.tokens

    def _sign(self, character: str) -> None:
        if character in "([{":
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise NotRead("too deep")
        elif character in ")]}":
            self.depth -= 1
        elif character == "$":  # around mathematics; a price has it before its number
            before = self.text[: self.place - 1].rstrip()
            is_price = (
                re.match(r"\s*[\d.]", self.text[self.place :])
                and "$" not in self.text[self.place :]
            )
            if not (is_price and "$" not in before):
                return
        self.add("sign", character)

    def _number(self, match: re.Match[str]) -> None:
        self.place = match.end()
        written = match[0]
        if self.as_lists and _LIST.fullmatch(written):
            for index, part in enumerate(written.split(",")):
                if index:
                    self.add("sign", ",")
                self.add("number", part, number(part))
            return
        if self.tokens and self.tokens[-1].text in ("frac", "binom") and written.isdecimal():
            # \frac12: a digit each
            self.add("number", written[0], number(written[0]))
            if written[1:]:
                self.add("number", written[1], number(written[1]))
            if written[2:]:
                self.add("number", written[2:], number(written[2:]))
            return
        self.add("number", written, number(written))

    def _letters(self, run: str) -> None:
        is_minute = run == "min" and not re.match(r"\s*(?:[({_]|\\)", self.text[self.place :])
        if (run in _COMMANDS or run in _NAMED) and not is_minute:
            self.add("command", _SAME.get(run, _NAMED.get(run, run)))
        elif run.casefold() in ("or", "and"):
            self.add("text", run)
        else:
            self.add("letter" if len(run) == 1 else "word", run)

    def _command(self, name: str) -> None:
        name = _SAME.get(name, name)
        if name in _DROPPED:
            self.spaced = True
            if name in ("left", "right"):
                self.place = re.compile(r"\s*\.?").match(self.text, self.place).end()  # type: ignore[union-attr]
        elif name in _TEXTS or name in _ROMANS:
            self._words(self._group(), "text" if name in _TEXTS else "roman")
        elif name in _FONTS:
            self._words(self._group(), "font")
        elif name in _WRAPPERS:
            pass  # its braces are a group
        elif name in ("color", "textcolor", "phantom", "vspace", "hspace"):
            self._group()
        elif name == "begin":
            self._environment()
        elif name in ("mathbb", "mathds", "Bbb"):
            self.add("command", "set " + self._group().strip())
        elif name == "$":
            self.add("sign", "$")
        elif name in "%{}|<>[]:&#" and len(name) == 1:
            self.add("sign", {"{": "\\{", "}": "\\}"}.get(name, name))
        else:
            self.add("command", name)

    def _group(self) -> str:
        """Return the text of the group that follows, without its braces, or one letter."""
        match = re.compile(r"\s*").match(self.text, self.place)
        assert match is not None
        start = match.end()
        if start >= len(self.text) or self.text[start] != "{":
            self.place = start + 1
            return self.text[start : start + 1]
        depth = 0
        for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(self.text, start):
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if depth == 0:
                self.place = match.end()
                return self.text[start + 1 : match.start()]
        raise NotRead("a group is open")

    def _words(self, content: str, kind: str) -> None:
        r"""\text{5 apples} is mathematics and words."""
        stripped = content.strip()
        is_words = re.fullmatch(r"[^\\$^_=\d+*<>]*", content) and re.search(r"[^\W\d_]", content)
        unit = re.sub(r"\\[,;:! ]|~", " ", content).strip()
        stripped = stripped.strip("~ ")
        if (
            _ONE_OR_TWO.fullmatch(stripped)
            and stripped not in _ORDINALS
            and units.read(stripped) is None
        ):
            kind = "font"  # \text{i} is a letter
        if is_words and kind != "font" and not (kind == "roman" and stripped in FUNCTIONS):
            self.add(kind, " ".join(stripped.split()))
            return
        if kind != "font" and len(unit) > 1 and units.read(unit) is not None:  # m/s^2
            self.add("text", unit)
            return
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotRead("too deep")
        inner = _Reader(content, self.as_lists)
        inner.depth = self.depth
        inside = inner.read()
        self.depth -= 1
        if inside:
            first = inside[0]
            inside[0] = Token(first.kind, first.text, True, first.value)
        if kind == "text":  # words in a text are words, not products of letters
            inside = [
                Token("text", each.text, each.spaced) if each.kind == "word" else each
                for each in inside
            ]
        self.tokens += inside

    def _environment(self) -> None:
        name = self._group().strip("* ")
        end = re.compile(rf"\\end\s*\{{\s*{re.escape(name)}\*?\s*\}}").search(self.text, self.place)
        if end is None or r"\begin" in self.text[self.place : end.start()]:
            raise NotRead("an environment within another, or an open one")
        content = self.text[self.place : end.start()]
        if name == "array":
            content = re.sub(r"^\s*\{[^{}]*\}", "", content)
        self.place = end.end()
        rows = [
            row.split("&")
            for row in re.split(r"\\\\|\\newline|\\cr(?![a-z])", content)
            if row.strip()
        ]
        cells = [
            [_Reader(cell.replace(r"\hline", ""), self.as_lists).read() for cell in row]
            for row in rows
        ]
        self.add("rows", name, cells)


def number(written: str) -> tuple[Fraction, int | None]:
    """Return a number's value, and how many decimals it has where it is written as a decimal."""
    digits, mark, exponent = written.replace(",", "").replace("٬", "").casefold().partition("e")
    if len(digits) > 4000:
        raise NotRead("too long")
    value = Fraction(digits) * Fraction(10) ** int(exponent or 0)
    decimals = len(digits.partition(".")[2]) if "." in digits else None
    return value, decimals if not mark else None


def tokens(text: str, as_lists: bool = False) -> list[Token]:
    """Cut a text into tokens.

    Args:
        text: LaTeX or plain text.
        as_lists: Read 101,102 as a list of two numbers.

    Raises:
        NotRead: A group or an environment is open, or brackets are nested too deeply.
    """
    found = _Reader(plain(text), as_lists).read()
    while found and found[-1].text in (".", ",", ";", ":") and found[-1].kind in ("sign", "text"):
        found.pop()
    return found
