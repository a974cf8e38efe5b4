r"""The characters and tokens of an answer: one notation for the many that models write.

`tokens` cuts LaTeX, plain text and Unicode into tokens and loses no letter and no digit: what has
no meaning in mathematics stays a token, so that the parser refuses it. Blanks, sizes, colours and
dollar signs around mathematics are dropped.
"""

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from . import units

MAX_DEPTH = 60  # brackets within brackets; no answer needs as many

# Characters, and what each of them is in LaTeX.
_SYMBOLS = r"""
    −–—‐‑‒―－﹣ -  ÷∕⁄／ /  ∶： :  ′’‘ '  “”″ "  ，、 ,  （ (  ） )  ； ;  。 .  ％ %  ＝ =  ＋ +  ＜ <  ＞ >  ∗ *  ∣ |
    ·⋅∙• \cdot  ×✕✖ \times  °º˚ ^\circ  ≤⩽≦ \le  ≥⩾≧ \ge  ≠ \ne  ≈≃≅ \approx  ± \pm  ∓ \mp  ≡ \equiv  … \ldots
    ⋯ \cdots  ∅⌀ \emptyset  ∪ \cup  ∩ \cap  ∈ \in  ∖ \setminus  ∞ \infty  ∨ \lor  ∧ \land  ∀ \forall  ∑ \sum
    ∏ \prod  ∫ \int  ⟨ \langle  ⟩ \rangle  ⌊ \lfloor  ⌋ \rfloor  ⌈ \lceil  ⌉ \rceil  ∠ \angle  △ \triangle
    ℝ \mathbb{R}  ℤ \mathbb{Z}  ℕ \mathbb{N}  ℚ \mathbb{Q}  ℂ \mathbb{C}  ℓ l  𝑖ⅈ i  𝑥 x  𝑒 e
    € \euro  £￡ \pounds  ¥￥ \yen  ₹ \rupee  ¢ \text{cents}
    ½ \frac{1}{2}  ⅓ \frac{1}{3}  ⅔ \frac{2}{3}  ¼ \frac{1}{4}  ¾ \frac{3}{4}  ⅕ \frac{1}{5}  ⅖ \frac{2}{5}
    ⅗ \frac{3}{5}  ⅘ \frac{4}{5}  ⅙ \frac{1}{6}  ⅚ \frac{5}{6}  ⅐ \frac{1}{7}  ⅛ \frac{1}{8}  ⅜ \frac{3}{8}
    ⅝ \frac{5}{8}  ⅞ \frac{7}{8}  ⅑ \frac{1}{9}  ⅒ \frac{1}{10}
    α \alpha  β \beta  γ \gamma  δ \delta  εϵ \epsilon  ζ \zeta  η \eta  θϑ \theta  κ \kappa  λ \lambda  μ \mu
    ν \nu  ξ \xi  π \pi  ρ \rho  σ \sigma  τ \tau  φϕ \phi  χ \chi  ψ \psi  ω \omega  Γ \Gamma  Δ \Delta
    Θ \Theta  Λ \Lambda  Ξ \Xi  Π \Pi  Σ \Sigma  Φ \Phi  Ψ \Psi  Ω \Omega
""".split()
_BLANKS = "\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000\t\n\r"
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u2061\u2062"
_CHARACTERS = str.maketrans(
    dict.fromkeys(_BLANKS, " ")
    | dict.fromkeys(_INVISIBLE, "")
    | {
        # a blank, lest a letter that follows becomes part of the command
        character: meaning + " " * (meaning[0] in "\\^" and meaning[-1] != "}")
        for characters, meaning in zip(_SYMBOLS[::2], _SYMBOLS[1::2], strict=True)
        for character in characters
    }
)
_FULL_WIDTH = {code: unicodedata.normalize("NFKC", chr(code)) for code in range(0xFF01, 0xFF5F)}
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱˣ", "0123456789+-=()nix")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋ₙᵢₓ", "0123456789+-nix")


def characters(text: str) -> str:
    """Return a text with one character, or command of LaTeX, for each dash, blank, sign and letter
    of Unicode."""
    return text.translate(_CHARACTERS)


def _repeated(match: re.Match[str]) -> str:
    r"""0.1\overline{6} -> \frac{1}{6}."""
    groups = match.groupdict()
    whole, fixed, block = groups["whole"], groups["fixed"], groups["block"] or groups["digit"]
    if len(whole + fixed + block) > 60:
        return match[0]
    units = Fraction(int((whole or "0") + fixed)) + Fraction(int(block), 10 ** len(block) - 1)
    value = units / 10 ** len(fixed)
    return rf"{{\frac{{{value.numerator}}}{{{value.denominator}}}}}"


def _counted(match: re.Match[str]) -> str:
    r"""C_5^2 -> \binom{5}{2}, and A_5^2 as arrangements; C_1^2 is the square of a symbol."""
    name, above, below = match.groups()
    if int(below) > int(above):
        return match[0]
    if name == "C":
        return rf"\binom{{{above}}}{{{below}}}"
    return rf"\frac{{{above}!}}{{({above} - {below})!}}"


_REPEATING = r"(?P<whole>\d*)\.(?P<fixed>\d*)"
_DOTS = r"(?:\.{3,}|\\[lcd]?dots(?:[bcm])?(?![A-Za-z]))"
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
        ("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱˣ]+", lambda match: "^{" + match[0].translate(_RAISED) + "}"),
        ("[₀₁₂₃₄₅₆₇₈₉₊₋ₙᵢₓ]+", lambda match: "_{" + match[0].translate(_LOWERED) + "}"),
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
        (r"\\(?:mathrm|text)\s*\{d\}\s*(?=[a-z](?![a-z]))", "d"),
        # \frac12: a digit each
        (r"(\\(?:[dtc]?frac|[dt]?binom))\s*(\d)(\d)", r"\1{\2}{\3}"),
        # one form each of digits with a base, combinations, moduli, conditions and differences of sets
        (r"(?:\\text\s*\{\s*(\d*[A-F\d]+)\s*\}|(?<![A-Za-z])\((\d+)\))\s*(?=_)", r"\1\2"),
        (r"(\d)\\text\{([A-F])\}(?=_)", r"\1\2"),
        (r"\\(?:mathrm|text|rm)\s*\{\s*([AC])\s*\}(?=\s*_)", r"\1"),
        (r"(?<![A-Za-z])([AC])\s*_\s*\{?(\d{1,4})\}?\s*\^\s*\{?(\d{1,4})\}?", _counted),
        (r"\(\s*\\?[bp]?mod(?![A-Za-z])([^()]*)\)", r"\\pmod{\1}"),
        (r"(?<![A-Z])\(([^()=]*(?:[<>≠≤≥∈]|\\(?:in|[gln]eq?|[gl]t)(?![A-Za-z]))[^()=]*)\)[\s.]*$", r", \1"),
        (r"\^\s*\{?\s*\\prime\s*\}?", "'"), (r"(?<=_)\{?\((\d+)\)\}?", r"{\1}"),
        (r"(\\mathbb\s*\{?[A-Z]\}?)\s*-\s*(?=\\\{)", r"\1 \\setminus "),
    )
]  # fmt: skip


@lru_cache(maxsize=8)  # an answer is asked for several times
def plain(text: str) -> str:
    """Return a text in the characters of LaTeX."""
    text = text.translate(_FULL_WIDTH)
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    return characters(text)


class Token(NamedTuple):
    r"""A token of an answer.

    `kind` is "number", "based" (digits with their base), "letter", "word" (letters side by side),
    "text" (in `\text{}`), "roman" (in `\mathrm{}` and the like), "command", "sign" or "rows" (of an
    environment).
    """

    kind: str
    text: str
    spaced: bool = False  # whether a blank stands before it
    # of a number: its value and decimals; of digits with a base: the base; of rows: their cells
    value: Any = None

    @property
    def sign(self) -> str:
        """The name of a sign or command; "" for a number or letters."""
        return self.text if self.kind in ("sign", "command") else ""


class NotRead(Exception):
    """A text is not in the notation that is read."""


def _by_name(table: str) -> dict[str, str]:
    """Return the first word of each entry of a table by each of its other words."""
    entries = map(str.split, table.split(";"))
    return {name: meaning for meaning, *names in entries for name in names}


# The braces of those in the third line are a group.
_DROPPED = {"", " "}.union("""
    left right displaystyle textstyle limits nolimits quad qquad bf it rm sf tt hfill
    big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr middle
    boxed fbox underline mathstrut framebox
    , ; : ! > ( ) [ ]
""".split())  # fmt: skip
# What the group behind a command holds.
_GROUPS = _by_name("""
    text text textnormal textbf textit textrm textsf texttt mbox hbox emph textup; roman mathrm operatorname;
    font mathcal mathscr mathfrak mathbf mathit mathsf mathtt boldsymbol bm pmb mathbit mathnormal;
    set mathbb mathds Bbb; skipped color textcolor phantom vspace hspace; environment begin
""")  # fmt: skip
_COMMANDS = _by_name(r"""
    frac dfrac tfrac cfrac; binom dbinom tbinom; le leq leqslant; ge geq geqslant; ne neq; < lt; > gt;
    \{ { lbrace; \} } rbrace; [ lbrack; ] rbrack; | vert lvert rvert mid Vert; emptyset varnothing O; : colon;
    lor vee; land wedge; cdot cdotp; * ast; / div; approx simeq cong sim thickapprox; in isin; mod bmod;
    setminus backslash smallsetminus; rightarrow to longrightarrow implies Rightarrow; leftarrow gets;
    arctan arctg; arccot arcctg; tan tg; cot ctg; phi varphi; epsilon varepsilon; theta vartheta;
    $ dollar textdollar; euro texteuro EUR EURO; pounds textsterling; langle lang; rangle rang;
    ldots dots cdots dotsc; iff Leftrightarrow; infty infin
""")  # fmt: skip
FUNCTIONS = set("""
    sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth ln log lg exp
    gcd lcm max min det Re Im arg deg
""".split())  # fmt: skip
# Words of plain text that are commands: by another name, or by their own.
_WORDS = {name: name for name in (
    *FUNCTIONS,
    *"""abs floor ceil mod sqrt pi infty alpha beta gamma delta theta lambda sigma omega phi
    pm times cdot cup cap le ge""".split(),
)} | _by_name("infty infinity inf oo; arcsin asin; arccos acos; arctan atan; binom binomial")  # fmt: skip
# Words, in `\text{}` or not, that are signs.
_SIGNS = _by_name("lor or 或 或者 或者是; land and 和 与 及 以及; to to; % percent")
_ONE_OR_TWO = re.compile(r"[A-Za-z]|[a-z]{2}")
_ORDINALS = {*"st nd rd th or am pm is no".split()}
_NUMBER = re.compile(
    r"(?:\d{1,3}(?:(?:٬|,(?!\s))\d{3})+(?![\d])|\d+)(?:\.\d+)?(?:(?<=\d)[eE][-+]?\d{1,4}(?![\w.^]))?(?:\.(?=\s*/))?|\.\d+"
)
_BASES = "two three four five six seven eight nine ten eleven twelve".split()
_BASED = re.compile(
    r"(?P<digits>\d[\dA-F]*|[A-F][\dA-F]+)\s*_\s*(?:(?P<digit>\d)|\{\s*(?P<number>\d\d?)\s*\}"
    rf"|\{{\s*(?:\\text\s*\{{)?\s*(?P<name>{'|'.join(_BASES)})\s*\}}?\s*\}})"
)
_BLANK, _ANY = re.compile("[ ~]+"), re.compile(".", re.DOTALL)
_LETTERS = re.compile(r"[A-Za-z]+")
_COMMAND = re.compile(r"\\([A-Za-z]+|.|$)", re.DOTALL)
_LIST = re.compile(r"[1-9]\d\d(?:,[1-9]\d\d)+|[1-9]\d{0,2}(?:,[1-9]\d\d){2,}")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def is_ambiguous(text: str) -> bool:
    """Return whether 101,102 may be a list as well as a number."""
    return any(_LIST.fullmatch(match[0]) for match in _NUMBER.finditer(text))


class _Reader:
    """Cuts one text into tokens."""

    def __init__(self, text: str, as_lists: bool, depth: int = 0) -> None:
        self.text, self.as_lists = text, as_lists
        self.place, self.depth = 0, 0
        self.tokens: list[Token] = []
        self.spaced = False
        self.turn(depth)

    def add(self, kind: str, text: str, value: Any = None) -> None:
        self.tokens.append(Token(kind, text, self.spaced, value))
        self.spaced = False

    def turn(self, change: int) -> None:
        """Enter a bracket, or leave it."""
        self.depth += change
        if self.depth > MAX_DEPTH:
            raise NotRead("too deep")

    def read(self) -> list[Token]:
        forms = (
            (_BLANK, self._blank),
            (_BASED, self._based),
            (_NUMBER, self._number),
            (_LETTERS, self._letters),
            (_COMMAND, self._command),
            (_ANY, self._sign),
        )
        while self.place < len(self.text):
            for form, add in forms:
                if match := form.match(self.text, self.place):
                    self.place = match.end()
                    add(match)
                    break
        return self.tokens

    def _blank(self, match: re.Match[str]) -> None:
        self.spaced = True

    def _sign(self, match: re.Match[str]) -> None:
        character = match[0]
        if character in "([{":
            self.turn(1)
        elif character in ")]}":
            self.turn(-1)
        elif character == "$":  # around mathematics; a price has it before its number
            rest = self.text[self.place :]
            if "$" in self.text[: match.start()] + rest or not re.match(r"\s*[\d.]", rest):
                return
        self.add("sign", character)

    def _based(self, match: re.Match[str]) -> None:
        base = match["digit"] or match["number"] or _BASES.index(match["name"]) + 2
        self.add("based", match["digits"], int(base))

    def _number(self, match: re.Match[str]) -> None:
        written = match[0]
        is_list = self.as_lists and _LIST.fullmatch(written)
        for index, part in enumerate(written.split(",") if is_list else [written]):
            if index:
                self.add("sign", ",")
            self.add("number", part, number(part))

    def _letters(self, match: re.Match[str]) -> None:
        run = match[0]
        is_minute = run == "min" and not re.match(r"\s*(?:[({_]|\\)", self.text[self.place :])
        command = _SIGNS.get(run.casefold()) or _WORDS.get(run)
        if command and not is_minute:
            self.add("command", command)
        else:
            self.add("letter" if len(run) == 1 else "word", run)

    def _command(self, match: re.Match[str]) -> None:
        name = _COMMANDS.get(match[1], match[1])
        group = _GROUPS.get(name)
        if name in _DROPPED:
            self.spaced = True
            if name in ("left", "right"):
                self.place = re.compile(r"\s*\.?").match(self.text, self.place).end()  # type: ignore[union-attr]
        elif group in ("text", "roman", "font"):
            self._words(self._group(), group)
        elif group == "environment":
            self._environment()
        elif group == "set":
            self.add("command", "set " + self._group().strip())
        elif group == "skipped":
            self._group()
        else:
            self.add("command" if name.isalpha() else "sign", name)

    def _group(self) -> str:
        """Return the text of the group that follows, without its braces, or one letter."""
        start = len(self.text) - len(self.text[self.place :].lstrip())
        self.place = start + 1
        if self.text[start : start + 1] != "{":
            return self.text[start : start + 1]
        depth = 0
        for match in _BRACE.finditer(self.text, start):
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if depth == 0:
                self.place = match.end()
                return self.text[start + 1 : match.start()]
        raise NotRead("a group is open")

    def _words(self, content: str, kind: str) -> None:
        r"""\text{5 apples} is mathematics and words."""
        stripped = " ".join(content.replace("~", " ").split())
        is_words = re.fullmatch(r"[^\\$^_=\d+*<>]*", content) and re.search(r"[^\W\d_]", content)
        unit = re.sub(r"\\[,;:! ]|~", " ", content).strip()
        if sign := _SIGNS.get(stripped.casefold().strip(", ")):
            self.add("command", sign)
        elif (
            kind == "font"
            # \text{i} is a letter
            or (_ONE_OR_TWO.fullmatch(unit) and unit not in _ORDINALS and units.read(unit) is None)
            or (kind == "roman" and unit in FUNCTIONS)
        ):
            self._inside(content)
        elif is_words:
            self.add(kind, stripped)
        elif len(unit) > 1 and units.read(unit) is not None:  # m/s^2
            self.add("text", unit)
        else:
            self._inside(content, words="text" if kind == "text" else "word")

    def _inside(self, content: str, words: str = "word") -> None:
        """Add the tokens of a group, in which letters side by side are of the kind `words`."""
        inside = _Reader(content, self.as_lists, self.depth + 1).read()
        self.tokens += [
            token._replace(
                kind=words if token.kind == "word" else token.kind,
                spaced=token.spaced or index == 0,
            )
            for index, token in enumerate(inside)
        ]

    def _environment(self) -> None:
        name = self._group().strip("* ")
        end = re.compile(rf"\\end\s*\{{\s*{re.escape(name)}\*?\s*\}}").search(self.text, self.place)
        if end is None or r"\begin" in self.text[self.place : end.start()]:
            raise NotRead("an environment within another, or an open one")
        content = self.text[self.place : end.start()].replace(r"\hline", "")
        if name == "array":
            content = re.sub(r"^\s*\{[^{}]*\}", "", content)
        self.place = end.end()
        rows = filter(str.strip, re.split(r"\\\\|\\newline|\\cr(?![a-z])", content))
        cells = [[_Reader(cell, self.as_lists).read() for cell in row.split("&")] for row in rows]
        self.add("rows", name, cells)


def number(written: str) -> tuple[Fraction, int | None]:
    """Return a number's value, and how many decimals it has where it is written as a decimal."""
    digits, mark, exponent = written.replace(",", "").replace("٬", "").casefold().partition("e")
    if len(digits) > 4000:
        raise NotRead("too long")
    value = Fraction(digits) * Fraction(10) ** int(exponent or 0)
    return value, len(digits.partition(".")[2]) if "." in digits and not mark else None


def tokens(text: str, as_lists: bool = False) -> list[Token]:
    """Cut a text into tokens.

    Args:
        text: LaTeX or plain text.
        as_lists: Read 101,102 as a list of two numbers.

    Raises:
        NotRead: A group or an environment is open, or brackets are nested too deeply.
    """
    return _Reader(plain(text), as_lists).read()
