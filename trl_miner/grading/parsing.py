r"""Reads an answer as a tree, strictly: every letter and digit of the text is in the tree, or there
is none.

A node is a tuple: its kind, then its parts. Of expressions there are

    ("number", value, decimals)  ("symbol", name)  ("constant", "pi", "e", "i" or "infinity")
    ("add", a, b)  ("negative", a)  ("times", a, b)  ("over", a, b)  ("power", a, b)
    ("call", function, *arguments)  ("apply", name, a): f(x), or f times x
    ("plus-minus", a, b, sign)  ("percent", a)  ("quantity", a, unit)  ("based", digits, base)
    ("sum" or "product", variable, first, last, body)  ("integral", ...)  ("limit", ...)

and of what is no number

    ("sequence", open, close, *items)  ("set", *items)  ("list", *items)  ("or" or "and", *items)
    ("relation", sides, signs)  ("builder", variable, condition)  ("numbers", "R")
    ("union" or "intersection" or "without", a, b)  ("matrix", *rows)  ("ratio", *terms)
    ("congruence", left, residues, modulus)  ("point", name, sequence)  ("given", item, condition)
    ("pieces", *(value, condition))  ("opaque", text)
"""

import re
from collections.abc import Container, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from . import units
from .notation import FUNCTIONS, NotRead, Token, is_ambiguous, plain, tokens

Node = tuple[Any, ...]
Tokens = Sequence[Token]
EXPRESSIONS = {
    *"number symbol constant add negative times over power call apply sum product integral".split(),
    *"limit percent quantity based".split(),
}  # fmt: skip
INFINITY = ("constant", "infinity")

_BRACKETS = {
    "(": ")", "[": "]", "\\{": "\\}", "{": "}", "lfloor": "rfloor", "lceil": "rceil", "langle": "rangle",
}  # fmt: skip
_OPEN, _CLOSING = {"(", "[", "\\{", "{"}, {*_BRACKETS.values()}
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "le": "<=", "ge": ">=", "ne": "!=", "approx": "~", "in": "in", "notin": "notin",
    "equiv": "=", "doteq": "~",
}  # fmt: skip
_SETS = {"cup": "union", "cap": "intersection", "setminus": "without"}
# Words before a variable and its range, which restrict what stands before them.
_QUANTIFIERS = {"for", "where", "with"}
_QUANTIFYING = _QUANTIFIERS | {
    *"real all every any positive numbers integers integer number natural each some values of is an a".split(),
    *"nonnegative in".split(),
}
# Words that say no more than that the answer follows.
_LEADS = {
    *"answer solution result value thus so hence therefore about approximately roughly around exactly approx".split(),
    *"year page day room option choice is are the final correct equals total only".split(),
    *"答案 答案是 答案为 答 是 为 解 故 即".split(),
}  # fmt: skip
_ACCENTS = {*"overline bar hat vec tilde widehat overrightarrow widetilde dot ddot".split()}
_NO_PRODUCT = {
    *"is of in to if at by no it an as we be or so do he on my up us the and for not are".split()
}
_CURRENCIES = {*"$ euro pounds yen rupee".split()}
_CODES = {*"USD US EUR GBP CAD AUD Rs INR JPY CNY".split()}
# Letters of functions; f(x) is no product.
FUNCTION_LETTERS = {*"fghFGH"}
_OF_SEVERAL = {"gcd", "lcm", "max", "min"}
_PLAIN_UNITS = {*"km cm mm kg mi ft hr lb ml kw hz".split()}
_GREEK_NAMES = {
    *"alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi".split(),
    *"chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega hbar ell Upsilon upsilon".split(),
}  # fmt: skip
# Commands that stand for a node, and those with arguments: the node without them, and how many they are.
_CONSTANTS = {
    "pi": ("constant", "pi"),
    "infty": INFINITY,
    "emptyset": ("set",),
}
_WITH_ARGUMENTS = {
    "frac": (("over",), 2), "binom": (("call", "binomial"), 2), "abs": (("call", "abs"), 1),
    "floor": (("call", "floor"), 1), "ceil": (("call", "ceiling"), 1),
}  # fmt: skip
# Kinds of what runs over a range, and the sign between variable and start.
_RANGES = {
    "sum": ("sum", "="), "prod": ("product", "="), "lim": ("limit", "rightarrow"), "int": ("integral", ""),
}  # fmt: skip
_NO_FACTORS = {
    *_BRACKETS.values(), *_RELATIONS, *_SETS,
    *"rightarrow choose over pmod mod ldots circ infty degree iff pm mp lor land to : %".split(),
}  # fmt: skip
_STATEMENTS = {
    *"relation given or and list ratio congruence builder union without numbers".split(),
}
_ARITHMETIC = {*"add negative times over power call apply percent quantity plus-minus".split()}


def parse(text: str, as_lists: bool = False, plain_units: bool = False) -> Node:
    """Return the tree of a text.

    Args:
        text: LaTeX or plain text.
        as_lists: Read 101,102 as a list of two numbers.
        plain_units: Read letters behind a number as a unit, `7m` as 7 meters.

    Raises:
        NotRead: The text is not in the notation that is read, such as a sentence.
    """
    found = tokens(text, as_lists)
    if plain_units:
        found[1:] = [
            Token("text", token.text, token.spaced)
            if token.kind in ("letter", "word") and units.read(token.text)
            else token
            for token in found[1:]
        ]
    return _statement(_without_lead(found))


def readings(text: str) -> list[Node]:
    """Return the trees of a text: none, one, or two where 101,102 may be a number or a list."""
    trees = []
    for as_lists in (False, True) if is_ambiguous(plain(text)) else (False,):
        try:
            trees.append(parse(text, as_lists))
        except (NotRead, RecursionError):
            pass
    return trees


def number(value: Fraction | int) -> Node:
    """Return the node of a number that is not written as a decimal."""
    return ("number", Fraction(value), None)


def symbols(node: Any) -> set[str]:
    """Return the names of the symbols in a node."""
    match node:
        case ("symbol", name):
            return {name}
        case ("apply", name, argument):
            return {name} | symbols(argument)
        case ("sum" | "product" | "integral" | "limit", variable, *parts):
            return symbols(tuple(parts)) - {variable}
        case tuple():
            return {name for part in node for name in symbols(part)}
    return set()


def nodes_in(node: Node) -> list[Node]:
    """Return a tree and all trees in it."""
    nodes = [node]
    for each in nodes:  # it grows on the way
        nodes += [part for part in each if isinstance(part, tuple) and part]
    return nodes


def substituted(node: Any, old: Node | None, new: Node | None) -> Any:
    """Return a tree in which one part stands for another."""
    if node == old:
        return new
    return tuple(substituted(part, old, new) for part in node) if isinstance(node, tuple) else node


# Statements: lists, relations, sets.


def _statement(found: Tokens) -> Node:
    found = _stripped(found)
    if (congruence := _congruence(found)) is not None:
        return congruence
    found, condition = _condition(found)
    if condition is not None:
        return ("given", _statement(found), condition)
    if len(parts := _split(found, {"lor"})) > 1:
        return ("or", *map(_statement, parts))
    items = _items(found)
    has_and = len(_split(found, {"land"})) > 1
    if len(items) > 1 and not has_and and _is_restriction(items[-1]):
        # 2k\pi, k \in \mathbb{Z}
        before = items[0] if len(items) == 2 else ("list", *items[:-1])
        is_range = any(each[0] == "relation" and _is_restriction(each) for each in items[:-1])
        if not is_range and symbols(items[-1]) & symbols(before):
            return ("given", before, items[-1])
    return ("and" if has_and else "list", *items) if len(items) > 1 else items[0]


def _stripped(found: Tokens) -> Tokens:
    """Drop what may stand around a statement: full stops, braces, asterisks, equals signs before
    it."""
    while found:
        if found[-1].sign in (".", ";", ",", "*"):
            found = found[:-1]
        elif found[0].sign in ("=", "approx", "therefore", "*", ":", ","):
            found = found[1:]
        elif found[0].sign == "{" and _end(found, 0) == len(found) - 1:
            found = found[1:-1]
        else:
            return found
    raise NotRead("empty")


def _without_lead(found: Tokens) -> Tokens:
    """Drop "The answer is" and the like, where something else follows."""
    for start, token in enumerate(found):
        words = token.text.casefold().replace(":", " ").replace(".", " ").split()
        is_lead = token.kind in ("text", "word", "roman") and _LEADS.issuperset(words)
        if not is_lead and not (start and token.sign in (":", ",")):
            return found[start:]
    return found


def _end(found: Tokens, start: int) -> int:
    """Return the index of the bracket that closes the one at `start`."""
    depth = 0
    for index in range(start, len(found)):
        depth += _turn(found[index])
        if depth == 0:
            return index
    raise NotRead("a bracket is open")


def _turn(token: Token) -> int:
    return (token.sign in _BRACKETS) - (token.sign in _CLOSING)


def _cut(found: Tokens, marks: Container[str]) -> tuple[list[Tokens], list[str]]:
    """Cut at the marks outside all brackets; return what stands between them, and the marks."""
    parts, cuts, depth, start = [], [], 0, 0
    if not any(token.sign in marks for token in found):
        return [found], []
    for index, token in enumerate(found):
        depth += _turn(token)
        if depth < 0:  # ]0, 1[
            return [found], []
        if depth == 0 and token.sign in marks:
            parts.append(found[start:index])
            cuts.append(token.sign)
            start = index + 1
    return [*parts, found[start:]], cuts


def _split(found: Tokens, marks: Container[str]) -> list[Tokens]:
    return _cut(found, marks)[0]


def _items(found: Tokens) -> list[Node]:
    return [_chain(part) for part in _split(found, {",", ";", "land"}) if part]


def _condition(found: Tokens) -> tuple[Tokens, Node | None]:
    r"""Cut off `\text{ for all } x > 0`, which restricts a variable of what stands before it."""
    for place, token in enumerate(found):
        if (
            place
            and (token.sign == "forall" or _words(token) & _QUANTIFIERS)
            and _is_quantifying(token)
        ):
            condition = _statement([each for each in found[place:] if not _is_quantifying(each)])
            if _is_restriction(condition):
                return found[:place], condition
            raise NotRead("a condition that is none")
    return found, None


def _words(token: Token) -> set[str]:
    return (
        {*token.text.casefold().strip(",. ").split()} if token.kind in ("text", "word") else set()
    )


def _is_quantifying(token: Token) -> bool:
    words = _words(token)
    return token.sign == "forall" or bool(words) and words <= _QUANTIFYING


def _is_restriction(node: Node) -> bool:
    if node[0] in ("list", "given"):
        return all(map(_is_restriction, node[1:]))
    return node[0] == "symbol" or node[0] == "relation" and "=" not in node[2]


def _congruence(found: Tokens) -> Node | None:
    r"""`n \equiv 1, 3 \pmod{4}`"""
    parts, marks = _cut(found, {"pmod", "mod"})
    if len(parts) != 2:
        return None
    *left, residues = _split(parts[0], {"equiv"})
    if not left and marks == ["mod"]:
        return None
    name = _expression(left[0]) if len(left) == 1 else ("symbol", "")
    cases = [item for part in _split(residues, {"lor"}) for item in _items(part)]
    return (
        ("congruence", name, tuple(cases), _expression(parts[1]))
        if cases and len(left) < 2
        else None
    )


def _chain(found: Tokens) -> Node:
    """An expression, or several with signs of relation between them."""
    parts, signs = _cut(_stripped(found), _RELATIONS)
    if not signs:
        return _system(parts[0]) or _set(parts[0])
    sides = []
    for index, part in enumerate(parts):
        try:
            sides.append(_set(part))
        except NotRead:
            if index or _RELATIONS[signs[0]] not in ("=", "~") or not _is_label(part):
                raise
            sides.append(("opaque", " ".join(token.text for token in part)))
    return ("relation", tuple(sides), tuple(_RELATIONS[sign] for sign in signs))


def _is_label(found: Tokens) -> bool:
    r"""Return whether the left side of an equation may be what is not read: a name, P(X = 1), or
    1 + 2 + \cdots + n."""
    is_named = [token.kind not in ("sign", "number", "based", "rows") for token in found]
    if any(token.sign == "ldots" for token in found):
        return not any(token.kind in ("text", "word") for token in found)
    if len(found) > 2 and is_named[0] and found[1].sign in ("(", "["):
        return _end(found, 1) == len(found) - 1
    return bool(found) and all(
        named or token.text in "()_{}^'," for named, token in zip(is_named, found, strict=True)
    )


def _system(found: Tokens) -> Node | None:
    """An environment whose rows are equations, or cases with their conditions."""
    environment = found[-1]
    if (
        environment.kind != "rows"
        or "matrix" in environment.text
        or [token for token in found[:-1] if token.sign not in ("\\{", "{")]
    ):
        return None
    rows = environment.value
    if "cases" in environment.text and all(len(row) == 2 for row in rows):
        return ("pieces", *(tuple(map(_piece, row)) for row in rows))
    lines = [[token for cell in row for token in cell] for row in rows]
    if environment.text == "array" and not all(_cut(line, _RELATIONS)[1] for line in lines):
        return None
    items = [_statement(line) for line in lines]
    return items[0] if len(items) == 1 else ("and", *items)


def _piece(cell: Tokens) -> Node:
    words = {"if", "for", "when", "otherwise", "else"}
    kept = [token for token in cell if not (_words(token) and _words(token) <= words)]
    return _statement(kept) if kept else ("opaque", "otherwise")


def _set(found: Tokens) -> Node:
    parts, operations = _cut(_stripped(found), _SETS)
    node, *others = map(_ratio, parts)
    for operation, other in zip(operations, others, strict=True):
        node = (_SETS[operation], node, other)
    return node


def _ratio(found: Tokens) -> Node:
    found = _stripped(found)
    ends = found[0].sign + found[-1].sign
    if len(found) > 2 and ends in ("][", "]]", "[["):  # ]0, 1]: an end does not belong to it
        return (
            "sequence",
            "[" if ends[0] == "[" else "(",
            "]" if ends[1] == "]" else ")",
            *_items(found[1:-1]),
        )
    parts = _split(found, {":", "to"})
    return ("ratio", *map(_expression, parts)) if len(parts) > 1 else _expression(found)


def _expression(found: Tokens) -> Node:
    for name, head in (("choose", ("call", "binomial")), ("over", ("over",))):
        parts = _split(found, {name})
        if len(parts) == 2:
            return (*head, *map(_expression, parts))
    reader = _Expression(found)
    node = reader.sum()
    if reader.place < len(reader.found):
        raise NotRead(f"unexpected {reader.found[reader.place].text}")
    _check_arithmetic(node)
    return node


def _check_arithmetic(node: Node) -> None:
    """Refuse arithmetic with what is no number."""
    if node[0] in _ARITHMETIC:
        for part in node[1:]:
            if isinstance(part, tuple) and part:
                if part[0] in _STATEMENTS:
                    raise NotRead("arithmetic with a statement")
                _check_arithmetic(part)


def _braces(inner: Tokens) -> Node:
    r"""\{1, 2\} or \{x \mid x > 1\}."""
    for mark in ("|", ":"):
        head, *rest = _split(inner, {mark})
        # |x|, |y| are no condition
        if rest and head and not (mark == "|" and len(rest) > 1 and len(rest) % 2 == 0):
            variable = member = _chain(head)
            condition = _statement(inner[len(head) + 1 :])
            if member[0] == "relation" and member[2] == ("in",):  # x \in \mathbb{N}
                variable, condition = member[1][0], ("and", member, condition)
            if variable[0] != "symbol":
                raise NotRead("a set of what is no variable")
            return ("builder", variable[1], condition)
    return ("set", *_items(inner))


class _Expression:
    """Reads one expression from left to right."""

    def __init__(self, found: Tokens) -> None:
        self.found, self.place, self.bars = list(found), 0, 0

    def peek(self, ahead: int = 0) -> Token:
        place = self.place + ahead
        return self.found[place] if place < len(self.found) else Token("end", "")

    def accept(self, *signs: str) -> str:
        """Take the next token if it is one of these signs, and return it; else ""."""
        sign = self.peek().sign
        if sign not in signs:
            return ""
        self.place += 1
        return sign

    def sum(self) -> Node:
        node = self.term()
        while sign := self.accept("+", "-", "pm", "mp"):
            other = self.term()
            if sign in ("pm", "mp"):
                node = ("plus-minus", node, other, sign)
            else:
                node = ("add", node, other if sign == "+" else ("negative", other))
        return node

    def term(self) -> Node:
        sign = self.accept("-", "+", "pm", "mp")
        if sign in ("pm", "mp"):
            return ("plus-minus", number(0), self.term(), sign)
        if sign:
            return ("negative", self.term()) if sign == "-" else self.term()
        node = self.factor()
        while True:
            if self.accept("*", "cdot", "times"):
                node = ("times", node, self.signed())
            elif self.accept("/"):
                node = ("over", node, self.signed())
            elif self.accept("%"):
                node = ("percent", node)
            elif self.accept("mod"):
                node = ("call", "mod", node, self.factor())
            elif power := self.power_of_ten():
                node = ("times", node, number(10**power))
            elif (unit := self.unit()) is not None:
                node = _with_unit(node, unit)
            elif self.starts_factor():
                node = self.side_by_side(node)
            else:
                return node

    def signed(self) -> Node:
        """A factor that may have a minus, such as one behind a sign of multiplication."""
        return ("negative", self.signed()) if self.accept("-") else self.factor()

    def starts_factor(self) -> bool:
        token = self.peek()
        if token.kind == "sign":
            return token.sign in _OPEN or (token.sign == "|" and not self.bars)
        return token.kind not in ("text", "end") and token.sign not in _NO_FACTORS

    def side_by_side(self, left: Node) -> Node:
        """A product without a sign, or a mixed number."""
        token, after = self.peek(), self.peek(1)
        if left[0] == "quantity":
            raise NotRead("a factor behind a unit")
        if token.kind in ("number", "based") and self.found[self.place - 1].kind in (
            "number",
            "based",
        ):
            # 3 1/2
            if not (token.spaced and after.sign == "/" and self.peek(2).kind == "number"):
                raise NotRead("numbers side by side")
            self.place += 3
            right: Node = ("over", ("number", *token.value), ("number", *self.peek(-1).value))
            if not _is_mixed(left, right):
                raise NotRead("numbers side by side")
            return ("add", left, right)
        is_fraction = token.sign == "frac" or (token.sign == "{" and after.sign == "frac")
        right = self.factor()
        return ("add" if is_fraction and _is_mixed(left, right) else "times", left, right)

    def factor(self) -> Node:
        node = self.primary()
        while True:
            if self.accept("^"):
                node = self.raised(node)
            elif self.accept("!"):
                is_double = not self.peek().spaced and self.accept("!")
                node = ("call", "factorial2" if is_double else "factorial", node)
            elif self.accept("degree"):
                node = self.degrees(node)
            else:
                return node

    def raised(self, base: Node) -> Node:
        group = [self.peek(1)] if self.peek().sign == "{" else [self.peek()]
        if group[0].text == "circ":
            self.group()
            return self.degrees(base)
        if group[0].text in ("st", "nd", "rd", "th") and base[0] == "number":
            self.group()
            return base
        return ("power", base, self.script())

    def degrees(self, node: Node) -> Node:
        token = self.peek()
        scale = {"C": "celsius", "F": "fahrenheit", "K": "kelvin"}.get(token.text)
        if scale is None or token.sign:
            return ("quantity", node, units.DEGREE)
        self.place += 1
        return ("quantity", node, units.read(scale))

    def group(self) -> Tokens:
        """Take a group, and return what is in its brackets; without brackets, take one token."""
        start = self.place
        if self.peek().sign not in _BRACKETS:
            self.place += 1
            return self.found[start : self.place]
        self.place = _end(self.found, start) + 1
        return self.found[start + 1 : self.place - 1]

    def braced(self) -> Tokens:
        """Take what is in braces, or one token."""
        if self.peek().sign == "{":
            return self.group()
        self.place += 1
        return [self.peek(-1)]

    def script(self) -> Node:
        """What stands behind ^ or _: a group, or one token with its sign."""
        if sign := self.accept("-", "+"):
            return ("negative", self.script()) if sign == "-" else self.script()
        return self.argument()

    def argument(self) -> Node:
        if self.peek().sign in ("{", "("):
            return _expression(self.group())
        if self.peek().kind == "word":
            self.split_word()
        return self.primary(is_script=True)

    def split_word(self) -> None:
        word = self.peek()
        is_attached = self.place > 0 and not word.spaced
        if (word.kind == "roman" or not is_attached) and not is_product(word.text):
            raise NotRead("a word")
        self.found[self.place : self.place + 1] = [Token("letter", each) for each in word.text]

    def primary(self, is_script: bool = False) -> Node:
        token = self.peek()
        if token.sign in _CURRENCIES or token.text in _CODES:
            self.place += 1
            return ("quantity", self.term(), units.currency(token.text))
        if token.kind in ("word", "roman") and len(token.text) > 1:
            self.split_word()
            token = self.peek()
        self.place += 1
        if token.kind == "number":
            return ("number", *token.value)
        if token.kind == "based":
            return ("based", token.text, token.value)
        if token.kind in ("letter", "roman"):
            return _named(token.text) if is_script else self.symbol(token.text)
        if token.kind == "rows":
            return _matrix(token)
        if token.sign in _BRACKETS:
            self.place -= 1
            return self.bracket()
        if token.sign == "|":
            return self.bar()
        return self.command(token.sign)

    def symbol(self, name: str) -> Node:
        if self.accept("_"):
            name += "_" + "".join(token.text for token in self.braced())
        while self.accept("'"):
            name += "'"
        node = self.applied(name) if self.peek().sign == "(" and name not in ("e", "i") else None
        return node or _named(name)

    def applied(self, name: str) -> Node | None:
        start = self.place
        items = _items(self.group())
        if not items:
            raise NotRead("nothing in brackets")
        if len(items) > 1:
            return ("point", name, ("sequence", "(", ")", *items))
        if self.peek().sign in ("!", "^") and name[0] not in FUNCTION_LETTERS:  # n(n - 1)!
            self.place = start
            return None
        return ("apply", name, items[0])

    def bracket(self) -> Node:
        opening = self.peek().sign
        inner = self.group()
        closing = self.peek(-1).sign
        if opening == "\\{":
            return _braces(inner)
        if opening == "{":
            return _statement(inner)
        if opening in ("lfloor", "lceil"):
            return ("call", "floor" if opening == "lfloor" else "ceiling", _expression(inner))
        items = _items(inner)
        if opening == "langle":
            return ("sequence", "(", ")", *items)
        if len(items) == 1 and _BRACKETS[opening] == closing:
            return items[0]
        if not items:
            raise NotRead("nothing in brackets")
        return ("sequence", opening, closing, *items)

    def bar(self) -> Node:
        self.bars += 1
        node = self.sum()
        self.bars -= 1
        if not self.accept("|"):
            raise NotRead("a bar is open")
        return ("call", "abs", node)

    def command(self, name: str) -> Node:
        if name in FUNCTIONS:
            return self.function(name)
        if name in _WITH_ARGUMENTS:
            head, count = _WITH_ARGUMENTS[name]
            return (*head, *(self.argument() for _ in range(count)))
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name in _GREEK_NAMES:
            return self.symbol("\\" + name)
        if name in _ACCENTS:
            return self.accented(name)
        if name.startswith("set "):  # \mathbb{R}^+
            is_part = self.accept("^", "_")
            return ("numbers", name[4:] + ("^" + self.braced()[0].text if is_part else ""))
        if name == "sqrt":
            degree = _expression(self.group()) if self.peek().sign == "[" else number(2)
            return ("call", "root", self.argument(), degree)
        if name in ("sum", "prod", "lim", "int"):
            return self.over_range(name)
        raise NotRead(f"unexpected {name}")

    def accented(self, name: str) -> Node:
        inner = self.braced()
        if not inner or any(
            token.kind not in ("letter", "word", "roman", "command") for token in inner
        ):
            raise NotRead("an accent over digits")
        return self.symbol(f"{name} {' '.join(token.text for token in inner)}")

    def function(self, name: str) -> Node:
        base = exponent = None
        while sign := self.accept("_", "^"):
            if sign == "_":
                base = self.script()
            else:
                exponent = self.script()
        arguments = self.arguments(name)
        if exponent == ("negative", number(1)) and "arc" + name in FUNCTIONS:
            return ("call", "arc" + name, *arguments)
        if name == "exp":
            node: Node = ("power", ("constant", "e"), *arguments)
        elif base == ("constant", "e"):
            node = ("call", "ln", *arguments)
        elif name in ("log", "lg"):
            base = number(10) if name == "lg" else base
            node = ("call", "log", *arguments, *([base] if base else []))
        else:
            node = ("call", name, *arguments)
        return node if exponent is None else ("power", node, exponent)

    def arguments(self, name: str) -> list[Node]:
        r"""Of \sin{2}x and \ln (x)(y) the group alone; of \sin 2x all factors."""
        if self.peek().sign in _OPEN:
            items = _items(self.group())
            if not items or (len(items) > 1) != (name in _OF_SEVERAL):
                raise NotRead("arguments")
            return items
        node = self.signed()
        while self.starts_factor() and self.peek().sign not in FUNCTIONS | {"("}:
            node = self.side_by_side(node)
        return [node]

    def over_range(self, name: str) -> Node:
        r"""\sum_{n=1}^{9} n^2, \prod, \int_0^1 x dx and \lim_{x \to 0} x."""
        kind, relation = _RANGES[name]
        ends: dict[str, Node] = {}
        variable = ""
        while sign := self.accept("_", "^"):
            below = self.braced() if sign == "_" and relation else []
            if not below:
                ends[sign] = self.script()
            elif len(below) > 2 and below[0].kind == "letter" and below[1].sign == relation:
                variable, ends[sign] = below[0].text, _expression(below[2:])
            else:
                raise NotRead("a range")
        if len(ends) < (1 if name == "lim" else 2):
            raise NotRead("a range")
        if name == "int":
            variable, body = self.integrand()
        else:
            body = self.term()
        body = substituted(body, ("constant", variable), ("symbol", variable))
        return (kind, variable, *(ends[sign] for sign in sorted(ends, reverse=True)), body)

    def integrand(self) -> tuple[str, Node]:
        """Return x and what stands before dx."""
        rest = self.found[self.place :]
        for index, token in enumerate(rest):
            if token.kind == "word" and len(token.text) == 2 and token.text[0] == "d":
                self.place += index + 1
                return token.text[1], _expression(rest[:index]) if index else number(1)
        raise NotRead("an integral")

    # Units.

    def power_of_ten(self) -> int:
        """Take "million" and the like, and return its power of ten; else 0."""
        token = self.peek()
        if token.kind not in ("text", "word"):
            return 0
        power, rest = units.scale(token.text)
        if power:
            words = [Token("text", rest, True)] if rest.strip() else []
            self.found[self.place : self.place + 1] = words
        return power

    def unit(self) -> units.Unit | None:
        """Return the unit that follows, and pass it; None where none does."""
        first, start = self.peek(), self.place
        if first.sign in _CURRENCIES or first.text in (*_CODES, "°C", "°F"):
            self.place += 1
            return units.currency(first.text)
        end = start
        while end < len(self.found) and self.continues_unit(end, end == start):
            end += 1
        for stop in range(end, start, -1):
            written = " ".join(token.text for token in self.found[start:stop])
            unit = units.read(written) if _may_be_unit(first) else None
            if (unit := unit or _words_of_unit(first, written)) is not None:
                self.place = stop
                return unit
        return None

    def continues_unit(self, place: int, is_first: bool) -> bool:
        token, before = self.found[place], self.found[place - 1].text
        if is_first or token.kind in ("text", "word", "roman"):
            return token.kind in ("text", "word", "roman")
        return token.text in ("^", "/", "cdot", "{", "}", "(") or before in ("^", "/", "{", "-")


def _may_be_unit(first: Token) -> bool:
    """Return whether letters may be a unit: of short ones outside \text{} only a few."""
    if first.kind == "word":
        return len(first.text) > 2 or first.text in _PLAIN_UNITS
    return first.kind == "text" or len(first.text) == 1 or not first.text.isupper()


def _words_of_unit(first: Token, written: str) -> units.Unit | None:
    """Return words that are no unit, as in "5 apples", or that follow one, as in "3 hours long"."""
    name, _, rest = written.partition(" ")
    if first.kind == "text" and rest and (unit := units.read(name)) and units.words(rest):
        return replace(unit, words=rest)
    is_word = first.spaced and {*first.text.casefold()} & {*"aeiouy"} and not is_product(first.text)
    if (
        not _may_be_unit(first)
        or first.kind == "word"
        and not is_word
        or len(first.text) < 3
        and first.kind == "roman"
    ):
        return None
    return units.words(re.sub(r" \^ (?:\{ )?\d(?: \})?$", "", written))


def _with_unit(node: Node, unit: units.Unit) -> Node:
    if node[0] != "quantity":
        return ("quantity", node, unit)
    named, other = (node[2], unit) if unit.exponents is None else (unit, node[2])
    if node[2] != unit and other.exponents is not None:
        raise NotRead("two units")
    if named.exponents is not None:  # 5 km east
        named = replace(named, words=other.words)
    return ("quantity", node[1], named)


def _matrix(token: Token) -> Node:
    rows = tuple(tuple(map(_expression, row)) for row in token.value)
    if "matrix" not in token.text and token.text != "array" or len({*map(len, rows)}) != 1:
        raise NotRead("no matrix")
    matrix = ("matrix", *rows)
    return ("call", "determinant", matrix) if token.text == "vmatrix" else matrix


def _named(name: str) -> Node:
    return ("constant", name) if name in ("e", "i") else ("symbol", name)


def _is_mixed(left: Node, right: Node) -> bool:
    """Return whether a number and a fraction are a mixed number."""
    if right[0] != "over":
        return False
    numbers = (left, *right[1:])
    are_whole = all(
        node[0] == "number" and node[1].denominator == 1 and node[2] is None for node in numbers
    )
    return are_whole and right[1][1] < right[2][1]


def is_product(word: str) -> bool:
    """Return whether letters side by side are a product, such as `ab` or `xyz`, rather than a
    word."""
    if word.casefold() in _NO_PRODUCT or not word.isalpha():
        return False
    if len(word) <= 2:
        return True
    is_title = word[0].isupper() and word[1:].islower()
    if len(word) > 4 or word.isupper() or is_title:
        return False
    in_a_row = all(ord(b) - ord(a) == 1 for a, b in zip(word, word[1:], strict=False))
    return in_a_row or not {*word.casefold()} & {*"aeiou"}
