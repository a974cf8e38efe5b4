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
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from . import units
from .notation import FUNCTIONS, NotRead, Token, is_ambiguous, plain, tokens

Node = tuple[Any, ...]
Tokens = Sequence[Token]

_OPEN, _CLOSE = {"(", "[", "\\{", "{"}, {")", "]", "\\}", "}"}
_OPEN_COMMANDS = {"lfloor": "rfloor", "lceil": "rceil", "langle": "rangle"}
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "le": "<=", "ge": ">=", "ne": "!=", "approx": "~", "in": "in", "notin": "notin",
    "equiv": "=", "doteq": "~",
}  # fmt: skip
_QUANTIFIERS = {
    "for all", "for any", "for every", "for each", "for", "where", "with", "for some", "for real", "for positive",
    "for all real", "for all positive", "for all integers", "for all positive integers", "for all real numbers",
}  # fmt: skip
_OR, _AND = {"or", "或", "或者", "或者是"}, {"and", "和", "与", "及", "以及", "&"}
# Sentences that say no more than that the answer follows.
_LEADS = {
    *"answer solution result value thus so hence therefore about approximately roughly around".split(),
    *"exactly approx".split(),
    *"year page day room option choice is are the final correct equals total only".split(),
    *"答案 答案是 答案为 答 是 为 解 故 即".split(),
}  # fmt: skip
_ACCENTS = {*"overline bar hat vec tilde widehat overrightarrow widetilde dot ddot".split()}
_NO_PRODUCT = {
    *"is of in to if at by no it an as we be or so do he on my up us the and for not are".split()
}
_CURRENCIES = {"euro", "pounds", "yen", "rupee"}
_CODES = {"USD", "US", "EUR", "GBP", "CAD", "AUD", "Rs", "INR", "JPY", "CNY"}
# Letters of functions; f(x) is no product.
FUNCTION_LETTERS = {*"fghFGH"}
_SIGNS_OF_PRODUCTS = {"*", "cdot", "times"}


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
        found = [_as_unit(found, place) for place in range(len(found))]
    return _statement(_without_lead(found))


def _as_unit(found: Tokens, place: int) -> Token:
    token = found[place]
    if place and token.kind in ("letter", "word") and units.read(token.text) is not None:
        return Token("text", token.text, token.spaced)
    return token


def readings(text: str) -> list[Node]:
    """Return the trees of a text: none, one, or two where 101,102 may be a number or a list."""
    found = []
    for as_lists in (False, True) if is_ambiguous(plain(text)) else (False,):
        try:
            found.append(parse(text, as_lists))
        except (NotRead, RecursionError):
            pass
    return found


# Statements: lists, relations, sets.


def _statement(found: Tokens) -> Node:
    found = _stripped(found)
    if not found:
        raise NotRead("empty")
    if (congruence := _congruence(found)) is not None:
        return congruence
    head, condition = _condition(found)
    if condition is not None:
        return ("given", _statement(head), condition)
    if len(parts := _split(found, _is_or)) > 1:
        return ("or", *(_statement(part) for part in parts))
    parts = [part for part in _split(found, _is_comma_or_and) if part]
    if len(parts) > 1:
        items = [_chain(part) for part in parts]
        return _with_condition(items, any(map(_is_and, _top(found))))
    return _chain(parts[0]) if parts else _fail("no item")


def _fail(message: str) -> Any:
    raise NotRead(message)


def _stripped(found: Tokens) -> Tokens:
    """Drop what may stand around a statement: full stops, braces, asterisks, equals signs before
    it."""
    while True:
        if found and found[-1].text in (".", ";", ",", "*") and found[-1].kind == "sign":
            found = found[:-1]
        elif found and found[0].text in ("=", "approx", "therefore", "*", ":", ","):
            found = found[1:]
        elif found and found[0].text == "{" and _end(found, 0) == len(found) - 1:
            found = found[1:-1]
        else:
            return found


def _without_lead(found: Tokens) -> Tokens:
    """Drop "The answer is" and the like, where something else follows."""
    start = 0
    while start < len(found) and found[start].kind in ("text", "word", "roman"):
        words = found[start].text.casefold().strip(":： .,").split()
        if not all(word.strip(":,：") in _LEADS for word in words):
            break
        start += 1
        while start < len(found) and found[start].text in (":", ",", "："):
            start += 1
    return found[start:] if start < len(found) else found


def _end(found: Tokens, start: int) -> int:
    """Return the index of the bracket that closes the one at `start`."""
    depth = 0
    for index in range(start, len(found)):
        depth += _turn(found[index])
        if depth == 0:
            return index
    raise NotRead("a bracket is open")


def _turn(token: Token) -> int:
    if token.kind == "sign":
        return (token.text in _OPEN) - (token.text in _CLOSE)
    if token.kind == "command":
        return (token.text in _OPEN_COMMANDS) - (token.text in _OPEN_COMMANDS.values())
    return 0


def _top(found: Tokens) -> list[Token]:
    """Return the tokens outside all brackets."""
    outside, depth = [], 0
    for token in found:
        turn = _turn(token)
        if depth == 0 and turn == 0:
            outside.append(token)
        depth += turn
    return outside


def _split(found: Tokens, is_mark: Callable[[Token], bool]) -> list[Tokens]:
    """Split at the marks outside all brackets."""
    parts, depth, start = [], 0, 0
    for index, token in enumerate(found):
        depth += _turn(token)
        if depth < 0:
            return [found]
        if depth == 0 and is_mark(token):
            parts.append(found[start:index])
            start = index + 1
    return [*parts, found[start:]]


def _is_or(token: Token) -> bool:
    return (token.kind == "text" and token.text.casefold().strip(", ") in _OR) or (
        token.kind == "command" and token.text == "lor"
    )


def _is_and(token: Token) -> bool:
    return (token.kind == "text" and token.text.casefold().strip(", ") in _AND) or (
        token.kind == "command" and token.text == "land"
    )


def _is_comma_or_and(token: Token) -> bool:
    return (token.kind == "sign" and token.text in ",;") or _is_and(token)


def _is(kind: str, text: str, token: Token) -> bool:
    return token.kind == kind and token.text == text


def _is_relation(token: Token) -> bool:
    return token.kind in ("sign", "command") and token.text in _RELATIONS


def _condition(found: Tokens) -> tuple[Tokens, Node | None]:
    r"""Cut off `\text{ for all } x > 0`, which restricts a variable of what stands before it."""
    if (place := _last_bracket(found)) and any(
        map(_is_relation, found[place:])
    ):  # (k \in \mathbb{Z})
        variables = _statement(found[place + 1 : -1])
        if variables[0] == "relation" and _is_restriction(variables):
            return found[:place], variables
    for index, token in enumerate(found):
        is_word = (
            token.kind in ("text", "word") and token.text.casefold().strip(", ") in _QUANTIFIERS
        )
        if not (index and (is_word or (token.kind == "command" and token.text == "forall"))):
            continue
        end = index
        while found[end - 1].text in (",", ";", "("):
            end -= 1
        rest = [each for each in found[index:] if not _is_quantifying(each)]
        if end < index and found[end].text == "(" and rest and rest[-1].text == ")":
            rest = rest[:-1]
        variables = _statement(rest) if rest else ("list",)
        if _is_restriction(variables):
            return found[:end], variables
        raise NotRead("a condition that is none")
    return found, None


def _last_bracket(found: Tokens) -> int | None:
    """Return the place of the bracket that the last token closes, if something stands before
    it."""
    opened = []
    for place, token in enumerate(found):
        if _turn(token) > 0:
            opened.append(place)
        elif _turn(token) < 0 and opened:
            start = opened.pop()
            if place == len(found) - 1 and found[start].text == "(":
                return start
    return None


def _is_quantifying(token: Token) -> bool:
    words = {
        "real",
        "all",
        "for",
        "every",
        "any",
        "positive",
        "numbers",
        "integers",
        "integer",
        "number",
        "natural",
    }
    is_words = token.kind in ("text", "word") and {*token.text.casefold().strip(",. ").split()} <= words | {
        "each", "where", "some", "with", "values", "of", "is", "an", "a", "nonnegative", "in"
    }  # fmt: skip
    return is_words or (token.kind == "command" and token.text == "forall")


def _is_restriction(node: Node) -> bool:
    if node[0] in ("list", "given"):
        return all(map(_is_restriction, node[1:]))
    return "=" not in node[2] if node[0] == "relation" else node[0] == "symbol"


def _with_condition(items: list[Node], has_and: bool) -> Node:
    r"""Return items side by side, of which the last may only restrict a variable: `2k\pi, k \in
    \mathbb{Z}`."""
    last = items[-1]
    if last[0] == "relation" and _is_restriction(last) and not has_and:
        before = items[0] if len(items) == 2 else ("list", *items[:-1])
        is_range = any(each[0] == "relation" and _is_restriction(each) for each in items[:-1])
        if not is_range and symbols(last) & symbols(before):
            return ("given", before, last)
    return ("and" if has_and else "list", *items)


def symbols(node: Any) -> set[str]:
    """Return the names of the symbols in a node."""
    if not isinstance(node, tuple) or not node:
        return set()
    if node[0] in ("symbol", "apply"):
        return {node[1]} | (symbols(node[2]) if node[0] == "apply" else set())
    names = {name for part in node for name in symbols(part)}
    if node[0] in ("sum", "product", "integral", "limit"):
        return names - {node[1]}
    return names


def _congruence(found: Tokens) -> Node | None:
    r"""`n \equiv 1, 3 \pmod{4}`"""
    places = [
        i
        for i, token in enumerate(found)
        if token.text in ("pmod", "mod") and token.kind == "command"
    ]
    marks = [i for i, token in enumerate(found) if token.text == "equiv"]
    if len(places) != 1 or len(marks) > 1 or (not marks and found[places[0]].text == "mod"):
        return None
    place, start = places[0], marks[0] if marks else -1
    modulus = [token for token in found[place + 1 :] if token.text not in "{}()"]
    before = found[start + 1 : place]
    if before and before[-1].text == "(":
        before = before[:-1]
    residues = [
        _chain(part)
        for part in _split(before, lambda token: _is_or(token) or _is_comma_or_and(token))
        if part
    ]
    left = _expression(found[:start]) if marks else ("symbol", "")
    if not residues:
        raise NotRead("no residue")
    return ("congruence", left, tuple(residues), _expression(modulus))


def _chain(found: Tokens) -> Node:
    """An expression, or several with signs of relation between them."""
    found = _stripped(found)
    signs = [_RELATIONS[token.text] for token in _top(found) if _is_relation(token)]
    if not signs:
        return _system(found) or _set(found)
    sides = []
    parts = _split(found, _is_relation)
    if len(parts) != len(signs) + 1:
        raise NotRead("brackets")
    for index, part in enumerate(parts):
        try:
            # "x = 1, 2" was split before; a tuple may stand on a side
            sides.append(_set(part) if part else _fail("a side is missing"))
        except NotRead:
            is_first = index == 0 and signs[0] in ("=", "~")
            if not (is_first and (_is_name(part) or _is_series(part))):
                raise
            sides.append(("opaque", text_of(part)))
    return ("relation", tuple(sides), tuple(signs))


def _is_name(found: Tokens) -> bool:
    kinds = {"text", "word", "letter", "roman", "command"}
    if len(found) > 2 and found[1].text in ("(", "[") and found[0].kind in kinds:  # P(X = 1)
        return _end(found, 1) == len(found) - 1
    is_plain = (token.kind in kinds or token.text in "()_{}^'," for token in found)
    return bool(found) and all(is_plain)


def _is_series(found: Tokens) -> bool:
    r"""1 + 2 + \cdots + n"""
    return any(token.text == "ldots" for token in found) and not any(
        token.kind in ("text", "word") for token in found
    )


def text_of(found: Tokens) -> str:
    """Return tokens as text, with a blank between them."""
    return " ".join(token.text for token in found)


def _system(found: Tokens) -> Node | None:
    """An environment whose rows are equations, or cases with their conditions."""
    if len(found) == 2 and found[0].text in ("\\{", "{"):
        found = found[1:]
    if len(found) != 1 or found[0].kind != "rows" or "matrix" in found[0].text:
        return None
    rows = found[0].value
    has_relation = [any(_is_relation(token) for cell in row for token in cell) for row in rows]
    if found[0].text in ("cases", "dcases", "rcases") and all(len(row) == 2 for row in rows):
        return ("pieces", *(tuple(_piece(cell) for cell in row) for row in rows))
    if not all(has_relation) and found[0].text == "array":
        return None
    lines = [[token for cell in row for token in cell] for row in rows]
    items = [_statement(line) for line in lines if line]
    return items[0] if len(items) == 1 else ("and", *items)


def _piece(cell: Tokens) -> Node:
    words = {"if", "for", "when", "otherwise", "else"}
    kept = [
        token
        for token in cell
        if not (token.kind in ("text", "word") and token.text.casefold().strip(", ") in words)
    ]
    return _statement(kept) if _stripped(kept) else ("opaque", "otherwise")


_SETS = {"cup": "union", "cap": "intersection", "setminus": "without"}


def _set(found: Tokens) -> Node:
    found = _stripped(found)
    operations = [
        _SETS[token.text]
        for token in _top(found)
        if token.kind == "command" and token.text in _SETS
    ]
    if operations:
        parts = _split(found, lambda token: token.kind == "command" and token.text in _SETS)
        if len(parts) != len(operations) + 1:
            parts = [part for part in _open_intervals(found)]
        node = _set(parts[0])
        for operation, part in zip(operations, parts[1:], strict=True):
            node = (operation, node, _set(part))
        return node
    if len(found) > 2 and found[0].text == "]" and found[-1].text in ("[", "]"):
        return ("sequence", "(", ")" if found[-1].text == "[" else "]", *_items(found[1:-1]))
    if len(found) > 2 and found[0].text == "[" and found[-1].text == "[":
        return ("sequence", "[", ")", *_items(found[1:-1]))
    if any(token.text == ":" and token.kind == "sign" for token in _top(found)):
        return _ratio(_split(found, partial(_is, "sign", ":")))
    if (
        len(
            parts := _split(
                found, lambda token: token.kind in ("text", "word") and token.text.strip() == "to"
            )
        )
        > 1
    ):
        return _ratio(parts)
    return _expression(found)


def _open_intervals(found: Tokens) -> list[Tokens]:
    """Split `]-1, 0[ \\cup ]0, 1[` at its unions."""
    parts: list[list[Token]] = [[]]
    for token in found:
        if token.kind == "command" and token.text in _SETS:
            parts.append([])
        else:
            parts[-1].append(token)
    return list(parts)


def _ratio(parts: Sequence[Tokens]) -> Node:
    return ("ratio", *(_expression(part) for part in parts))


def _items(found: Tokens) -> list[Node]:
    return [_chain(part) for part in _split(found, _is_comma_or_and) if part]


def _expression(found: Tokens) -> Node:
    for name in ("choose", "over"):
        parts = _split(found, partial(_is, "command", name))
        if len(parts) == 2:
            sides = [_expression(part) for part in parts]
            return ("over", *sides) if name == "over" else ("call", "binomial", *sides)
    reader = _Expression(found)
    node = reader.sum()
    if reader.place < len(reader.found):
        raise NotRead(f"unexpected {reader.found[reader.place].text}")
    if (
        node[0] == "add"
        and node[1][0] == "numbers"
        and node[2][0] == "negative"
        and node[2][1][0] == "set"
    ):
        return ("without", node[1], node[2][1])
    _check_arithmetic(node)
    return node


_STATEMENTS = {
    "relation",
    "given",
    "or",
    "and",
    "list",
    "ratio",
    "congruence",
    "builder",
    "union",
    "without",
    "numbers",
}
_ARITHMETIC = {
    "add",
    "negative",
    "times",
    "over",
    "power",
    "call",
    "apply",
    "percent",
    "quantity",
    "plus-minus",
}


def _check_arithmetic(node: Node) -> None:
    """Refuse arithmetic with what is no number."""
    if node[0] in _ARITHMETIC:
        for part in node[1:]:
            if isinstance(part, tuple) and part:
                if part[0] in _STATEMENTS:
                    raise NotRead("arithmetic with a statement")
                _check_arithmetic(part)


class _Expression:
    """Reads one expression from left to right."""

    def __init__(self, found: Tokens, bars: int = 0) -> None:
        self.found, self.place, self.bars = list(found), 0, bars

    def peek(self, ahead: int = 0) -> Token:
        place = self.place + ahead
        return self.found[place] if place < len(self.found) else Token("end", "")

    def take(self) -> Token:
        token = self.peek()
        self.place += 1
        return token

    def is_next(self, *texts: str) -> bool:
        return self.peek().kind in ("sign", "command") and self.peek().text in texts

    def sum(self) -> Node:
        node = self.term(first=True)
        while self.is_next("+", "-", "pm", "mp"):
            sign = self.take().text
            other = self.term()
            if sign in ("pm", "mp"):
                node = ("plus-minus", node, other, sign)
            else:
                node = ("add", node, other if sign == "+" else ("negative", other))
        return node

    def term(self, first: bool = False) -> Node:
        if self.is_next("-", "+"):
            sign = self.take().text
            node = self.term()
            return ("negative", node) if sign == "-" else node
        if self.is_next("pm", "mp"):
            return ("plus-minus", ("number", Fraction(0), None), self._after(), self.sign)
        node = self.factor()
        while True:
            token = self.peek()
            if token.kind in ("sign", "command") and token.text in _SIGNS_OF_PRODUCTS:
                self.take()
                node = ("times", node, self.signed())
            elif token.kind in ("sign", "command") and token.text == "/":
                self.take()
                node = ("over", node, self.signed())
            elif token.kind == "command" and token.text == "mod":
                self.take()
                node = ("call", "mod", node, self.factor())
            elif self.is_next("%"):
                self.take()
                node = ("percent", node)
            elif (unit := self.unit()) is not None:
                node = self.with_unit(node, unit)
            elif self.starts_factor():
                node = self.side_by_side(node)
            else:
                return node

    def _after(self) -> Node:
        self.sign = self.take().text
        return self.term()

    def signed(self) -> Node:
        """A factor behind a sign of multiplication; it may have a minus."""
        if self.is_next("-"):
            self.take()
            return ("negative", self.signed())
        return self.factor()

    def starts_factor(self) -> bool:
        token = self.peek()
        if token.kind in ("number", "letter", "word", "roman", "rows"):
            return True
        if token.kind == "command":
            return token.text not in _OPEN_COMMANDS.values() and token.text not in (
                "rightarrow", "choose", "over", "pmod", "ldots", "circ", "infty", "degree", "iff", "pm", "mp", "mod",
            )  # fmt: skip
        return token.text in ("(", "[", "{", "\\{") or (token.text == "|" and not self.bars)

    def side_by_side(self, left: Node) -> Node:
        """A product without a sign, or a mixed number."""
        token = self.peek()
        if left[0] == "quantity":
            raise NotRead("a factor behind a unit")
        if token.kind == "number" and self.found[self.place - 1].kind == "number":
            if self.peek(1).text == "/" and token.spaced and self.peek(2).kind == "number":
                above, below = token.value[0], self.peek(2).value[0]
                if (
                    _is_whole(left)
                    and above < below
                    and above.denominator == below.denominator == 1
                    and below < 10**4
                ):
                    self.place += 3
                    return ("add", left, ("over", ("number", above, None), ("number", below, None)))
            raise NotRead("numbers side by side")
        is_fraction = token.text == "frac" or (token.text == "{" and self.peek(1).text == "frac")
        right = self.factor()
        if is_fraction and _is_whole(left) and right[0] == "over":
            above, below = right[1:3]
            if _is_whole(above) and _is_whole(below) and above[1] < below[1]:
                return ("add", left, right)
        return ("times", left, right)

    def factor(self) -> Node:
        node = self.primary()
        while True:
            if self.is_next("^"):
                node = self.raised(node)
            elif self.is_next("!"):
                self.take()
                double = self.is_next("!") and not self.peek().spaced
                if double:
                    self.take()
                node = ("call", "factorial2" if double else "factorial", node)
            elif self.is_next("degree"):
                self.take()
                node = self.degrees(node)
            elif self.is_next("'") and node[0] == "number":
                self.take()
                node = ("quantity", node, units.read("foot"))
            else:
                return node

    def raised(self, base: Node) -> Node:
        self.take()
        inner = self.peek(1).text if self.is_next("{") else self.peek().text
        if inner == "circ":
            self.skip_group()
            return self.degrees(base)
        if inner in ("st", "nd", "rd", "th") and base[0] == "number":
            self.skip_group()
            return base
        if inner in ("T", "top", "prime", "*"):
            self.skip_group()
            return ("call", "raised " + inner, base)
        return ("power", base, self.script())

    def degrees(self, node: Node) -> Node:
        scale = {"C": "celsius", "F": "fahrenheit", "K": "kelvin"}.get(self.peek().text)
        if scale and self.peek().kind in ("letter", "text", "roman"):
            self.take()
            return ("quantity", node, units.read(scale))
        return ("quantity", node, units.DEGREE)

    def group(self) -> Tokens:
        """Take the brackets that follow, and return what is in them."""
        start, end = self.place, _end(self.found, self.place)
        self.place = end + 1
        return self.found[start + 1 : end]

    def group_or_token(self) -> Tokens:
        return self.group() if self.is_next("{") else [self.take()]

    def skip_group(self) -> None:
        self.place = _end(self.found, self.place) + 1 if self.is_next("{") else self.place + 1

    def script(self) -> Node:
        """What stands behind ^ or _: a group, or one token with its sign."""
        if self.is_next("{", "("):
            return _expression(self.group())
        if self.is_next("-", "+"):
            sign = self.take().text
            node = self.script()
            return ("negative", node) if sign == "-" else node
        if self.peek().kind == "word":
            self.split_word()
        return self.primary(is_script=True)

    def argument(self) -> Node:
        """An argument of a command: a group or one token."""
        if self.is_next("{", "("):
            return _expression(self.group())
        if self.peek().kind == "word":
            self.split_word()
        return self.primary(is_script=True)

    def split_word(self) -> None:
        word = self.peek()
        is_attached = not word.spaced and self.place > 0
        if not is_attached and word.kind == "word" and not is_product(word.text):
            raise NotRead("a word")
        letters = [Token("letter", letter) for letter in word.text]
        self.found[self.place : self.place + 1] = letters

    def primary(self, is_script: bool = False) -> Node:
        token = self.peek()
        is_digits = set(token.text) <= {*"ABCDEF"} and token.kind in ("word", "roman", "text")
        if is_digits and token.text and self.peek(1).text == "_":
            self.take()
            return self.based(token.text)
        if token.kind in ("word", "roman") and len(token.text) > 1:
            if token.kind == "roman" and not (token.text.isalpha() and is_product(token.text)):
                raise NotRead("a word")
            if token.text in _CODES:
                self.take()
                return ("quantity", self.term(), units.currency(token.text))
            self.split_word()
        token = self.take()
        if token.kind == "number":
            return self.numeral(token)
        if token.kind in ("letter", "roman"):
            return self.symbol(token.text, is_script)
        if token.kind == "command":
            return self.command(token.text)
        if token.kind == "rows":
            return self.matrix(token)
        if token.kind == "sign" and token.text in ("(", "[", "{", "\\{"):
            return self.bracket()
        if token.kind == "sign" and token.text == "|":
            return self.bar()
        if token.kind == "sign" and token.text == "$":
            return ("quantity", self.term(), units.currency("$"))
        raise NotRead(f"unexpected {token.text}")

    def numeral(self, token: Token) -> Node:
        if self.is_next("_"):
            return self.based(token.text)
        digits = self.peek()  # 4A_{16}
        if set(digits.text) <= {*"ABCDEF"} and digits.text and self.peek(1).text == "_":
            return self.based(token.text + self.take().text)
        return ("number", *token.value)

    def based(self, digits: str) -> Node:
        self.take()
        names = "two three four five six seven eight nine ten eleven twelve".split()
        inner = self.peek(1) if self.is_next("{") else self.peek()
        if inner.kind in ("text", "word") and inner.text in names:
            self.skip_group()
            return ("based", digits, names.index(inner.text) + 2)
        base = self.script()
        if base[0] != "number" or base[1].denominator != 1:
            raise NotRead("a base")
        return ("based", digits.upper(), int(base[1]))

    def symbol(self, name: str, is_script: bool = False) -> Node:
        if is_script:
            return _named(name)
        if self.is_next("_"):
            if combination := self.combination(name):
                return combination
            self.take()
            name += "_" + self.index()
        while self.is_next("'"):
            self.take()
            name += "'"
        if self.is_next("^") and self.peek(1).text == "prime":
            self.place += 2
            name += "'"
        if self.is_next("(") and name not in ("e", "i"):
            node = self.applied(name)
            if node is not None:
                return node
        return _named(name)

    def index(self) -> str:
        return "".join(token.text for token in self.group_or_token())

    def combination(self, name: str) -> Node | None:
        r"""C_{10}^{3}, the number of combinations, and A_{10}^{3}, of arrangements."""
        start = self.place
        if name in ("C", "A"):
            self.take()
            below = self.script()
            if self.is_next("^") and _is_whole(below):
                self.take()
                above = self.script()
                if _is_whole(above) and above[1] <= below[1]:
                    return ("call", "binomial" if name == "C" else "arrangements", below, above)
        self.place = start
        return None

    def applied(self, name: str) -> Node | None:
        end = _end(self.found, self.place)
        if end - self.place < 2:
            raise NotRead("nothing in brackets")
        items = _items(self.found[self.place + 1 : end])
        after = self.found[end + 1].text if end + 1 < len(self.found) else ""
        if len(items) == 1 and after in ("!", "^") and name[0] not in FUNCTION_LETTERS:
            return None  # n(n - 1)!
        self.place = end + 1
        if len(items) == 1:
            return ("apply", name, items[0])
        return ("point", name, ("sequence", "(", ")", *items))

    def bracket(self) -> Node:
        self.place -= 1
        start, end = self.place, _end(self.found, self.place)
        opening, closing = self.found[start].text, self.found[end].text
        inner, self.place = self.found[start + 1 : end], end + 1
        if opening == "\\{":
            return _braces(inner)
        if opening == "{":
            if not inner:
                raise NotRead("an empty group")
            return _statement(inner)
        items = _items(inner)
        if not items:
            raise NotRead("nothing in brackets")
        digits = "".join(token.text for token in inner)
        if self.is_next("_") and len(items) == 1 and digits.isalnum():
            return self.based(digits)
        if len(items) == 1 and opening == "(" and closing == ")":
            return items[0]
        if len(items) == 1 and opening == "[" and closing == "]":
            return items[0]
        return ("sequence", opening, closing, *items)

    def bar(self) -> Node:
        inner = _Expression(self.found[self.place :], self.bars + 1)
        node = inner.sum()
        if not inner.is_next("|"):
            raise NotRead("a bar is open")
        inner.take()
        self.found[self.place :] = inner.found
        self.place += inner.place
        return ("call", "abs", node)

    def matrix(self, token: Token) -> Node:
        name = token.text
        if name not in (
            "matrix",
            "pmatrix",
            "bmatrix",
            "vmatrix",
            "Bmatrix",
            "smallmatrix",
            "array",
            "Vmatrix",
        ):
            raise NotRead("an environment")
        rows = tuple(tuple(_expression(cell) for cell in row) for row in token.value)
        if len({len(row) for row in rows}) != 1:
            raise NotRead("rows of several lengths")
        return (
            ("call", "determinant", ("matrix", *rows)) if name == "vmatrix" else ("matrix", *rows)
        )

    def command(self, name: str) -> Node:
        if name in FUNCTIONS:
            return self.function(name)
        reader = getattr(self, "command_" + name, None)
        if reader is not None:
            node: Node = reader()
            return node
        if name.startswith("set "):
            suffix = "^" + self.suffix() if self.is_next("^", "_") else ""
            return ("numbers", name[4:] + suffix)
        if name in ("pi", "infty"):
            return ("constant", "pi" if name == "pi" else "infinity")
        if name == "emptyset":
            return ("set",)
        if name in _CURRENCIES:
            return ("quantity", self.term(), units.currency(name))
        if name in _ACCENTS:
            return self.accented(name)
        if name in _OPEN_COMMANDS:
            return self.enclosed(name)
        if name in _GREEK_NAMES:
            return self.symbol("\\" + name)
        raise NotRead(f"\\{name}")

    def suffix(self) -> str:
        self.take()
        return self.index()

    def accented(self, name: str) -> Node:
        inner = self.group_or_token()
        if not inner or not all(
            token.kind in ("letter", "word", "roman", "command") for token in inner
        ):
            raise NotRead("an accent over digits")
        return self.symbol(f"{name} {text_of(inner)}")

    def enclosed(self, name: str) -> Node:
        self.place -= 1
        start, end = self.place, _end(self.found, self.place)
        if self.found[end].text != _OPEN_COMMANDS[name]:
            raise NotRead("brackets of two kinds")
        inner, self.place = self.found[start + 1 : end], end + 1
        if name == "langle":
            return ("sequence", "(", ")", *_items(inner))
        return ("call", "floor" if name == "lfloor" else "ceiling", _expression(inner))

    def function(self, name: str) -> Node:
        name = {"lg": "log"}.get(name, name)
        base = exponent = None
        is_lg = self.found[self.place - 1].text == "lg"
        while self.is_next("_", "^"):
            sign = self.take().text
            if sign == "_":
                base = self.script()
            else:
                exponent = self.script()
        arguments = self.arguments(name)
        if exponent == ("negative", ("number", Fraction(1), None)) and "arc" + name in FUNCTIONS:
            name, exponent = "arc" + name, None
        if name == "log":
            base = ("number", Fraction(10), None) if is_lg else base
            is_e = base == ("constant", "e")
            node = (
                ("call", "ln", *arguments)
                if is_e
                else ("call", "log", *arguments, *([base] if base else []))
            )
        elif name == "exp":
            node = ("power", ("constant", "e"), *arguments)
        else:
            node = ("call", name, *arguments)
        return node if exponent is None else ("power", node, exponent)

    def arguments(self, name: str) -> list[Node]:
        if self.is_next("(", "{", "[", "\\{"):
            end = _end(self.found, self.place)
            inner = self.found[self.place + 1 : end]
            follows = self.found[end + 1 : end + 2]
            # \sin{2}x and \ln (x)(y) have their group alone
            self.place = end + 1
            items = _items(inner)
            if (
                len(items) == 1
                and items[0][0] in ("sequence", "set")
                and name in ("gcd", "lcm", "max", "min")
            ):
                items = list(items[0][3:] if items[0][0] == "sequence" else items[0][1:])
            if not items or (len(items) > 1) != (name in ("gcd", "lcm", "max", "min")):
                raise NotRead("arguments")
            if follows and follows[0].text == "^" and name not in ("Re", "Im"):
                pass  # \sin(x)^2 is the square of the sine
            return items
        node = self.signed() if self.is_next("-") else self.factor()
        while self.starts_factor() and self.peek().text not in FUNCTIONS and not self.is_next("("):
            node = self.side_by_side(node)
        return [node]

    # Commands with a form of their own.

    def command_frac(self) -> Node:
        return ("over", self.argument(), self.argument())

    def command_sqrt(self) -> Node:
        degree: Node = ("number", Fraction(2), None)
        if self.is_next("["):
            degree = _expression(self.group())
        return ("call", "root", self.argument(), degree)

    def command_binom(self) -> Node:
        if self.is_next("("):
            items = _items(self.group())
            return ("call", "binomial", *items) if len(items) == 2 else _fail("binomial")
        return ("call", "binomial", self.argument(), self.argument())

    def command_abs(self) -> Node:
        return ("call", "abs", self.argument())

    def command_floor(self) -> Node:
        return ("call", "floor", self.argument())

    def command_ceil(self) -> Node:
        return ("call", "ceiling", self.argument())

    def command_mathrm(self) -> Node:
        return self.argument()

    def command_sum(self) -> Node:
        return self.over_range("sum")

    def command_prod(self) -> Node:
        return self.over_range("product")

    def over_range(self, kind: str) -> Node:
        first = last = None
        variable = ""
        while self.is_next("_", "^"):
            if self.take().text == "_":
                inner = self.group_or_token()
                if len(inner) < 3 or inner[0].kind != "letter" or inner[1].text != "=":
                    raise NotRead("a range")
                variable, first = inner[0].text, _expression(inner[2:])
            else:
                last = self.script()
        if first is None or last is None:
            raise NotRead("a range")
        return (kind, variable, first, last, _renamed(self.product(), variable))

    def product(self) -> Node:
        node = self.term()
        return node

    def command_lim(self) -> Node:
        if not self.is_next("_"):
            raise NotRead("a limit")
        self.take()
        inner = self.group_or_token()
        if len(inner) < 3 or inner[0].kind != "letter" or inner[1].text != "rightarrow":
            raise NotRead("a limit")
        side = ""
        if len(inner) > 4 and inner[-2].text == "^" and inner[-1].text in "+-":
            side, inner = inner[-1].text, inner[:-2]
        return (
            "limit",
            inner[0].text,
            _expression(inner[2:]),
            side,
            _renamed(self.product(), inner[0].text),
        )

    def command_int(self) -> Node:
        first = last = None
        while self.is_next("_", "^"):
            if self.take().text == "_":
                first = self.script()
            else:
                last = self.script()
        rest = self.found[self.place :]
        for index, token in enumerate(rest):
            is_word = (
                token.kind in ("word", "roman") and len(token.text) == 2 and token.text[0] == "d"
            )
            is_pair = (
                token.text == "d" and token.kind in ("letter", "roman") and index + 1 < len(rest)
            )
            if is_word or is_pair:
                variable = token.text[1] if is_word else rest[index + 1].text
                self.place += index + (1 if is_word else 2)
                body = _expression(rest[:index]) if index else ("number", Fraction(1), None)
                if first is None or last is None:
                    raise NotRead("an integral without bounds")
                return ("integral", variable, first, last, _renamed(body, variable))
        raise NotRead("an integral")

    # Units.

    def unit(self) -> units.Unit | None:
        """Return the unit that follows, and pass it; None where none does."""
        token = self.peek()
        if token.kind not in ("text", "word", "roman"):
            if token.text in ("$", *_CURRENCIES) and token.kind in ("sign", "command"):
                self.take()
                return units.currency(token.text)
            return None
        end = self.place + 1
        while end < len(self.found) and self._continues_unit(end):
            end += 1
        for stop in range(end, self.place, -1):
            written = " ".join(each.text for each in self.found[self.place : stop])
            if token.text in _CODES or token.text in ("°C", "°F"):
                found = units.currency(token.text) if stop == self.place + 1 else None
            else:
                found = self._unit(token, written)
            if found is not None:
                self.place = stop
                return found
        return None

    def _continues_unit(self, place: int) -> bool:
        token, before = self.found[place], self.found[place - 1]
        if token.kind in ("text", "word", "roman"):
            return True
        if token.text in ("^", "/", "cdot"):
            return True
        if token.kind in ("letter", "number", "sign"):
            return (
                before.text in ("^", "/", "{", "-")
                or token.text == "}"
                or (token.kind == "sign" and token.text in "{(")
            )
        return False

    def _unit(self, first: Token, written: str) -> units.Unit | None:
        if first.kind == "word" and not (len(first.text) > 2 or first.text in _PLAIN_UNITS):
            return None
        if first.kind == "roman" and first.text.isupper() and len(first.text) > 1:
            return None
        power, rest = units.scale(written)
        if power:
            inner = (
                (units.read(rest) or units.words(rest)) if rest.strip() else units.Unit(words="")
            )
            return inner and units.Unit(inner.size, inner.exponents, f"10^{power} {inner.words}")
        found = units.read(written)
        if found is not None:
            return found
        first_word, _, rest = written.partition(" ")
        if first.kind == "text" and rest and (unit := units.read(first_word)) and units.words(rest):
            return units.Unit(unit.size, unit.exponents, rest)  # 3 hours long
        if written.casefold() in ("percent", "per cent", "%"):
            return units.Unit(words="percent")
        if first.kind == "roman" and len(first.text) <= 2:
            return None
        if first.kind == "word" and not (
            first.spaced and any(letter in "aeiouyAEIOUY" for letter in first.text)
        ):
            return None
        if first.kind == "word" and is_product(first.text):
            return None
        return units.words(re.sub(r" \^ (?:\{ )?\d(?: \})?$", "", written))

    def with_unit(self, node: Node, unit: units.Unit) -> Node:
        if unit.words == "percent":
            return ("percent", node)
        if unit.words.startswith("10^"):
            power, _, rest = unit.words[3:].partition(" ")
            node = ("times", node, ("number", Fraction(10) ** int(power), None))
            if not rest and unit.exponents is None:
                return node
            unit = units.Unit(unit.size, unit.exponents, rest)
        if node[0] == "quantity":
            if node[2] == unit or node[2].exponents is None or unit.exponents is None:
                named, other = (node[2], unit) if unit.exponents is None else (unit, node[2])
                if named.exponents is not None:  # 5 km east
                    named = units.Unit(named.size, named.exponents, other.words)
                return ("quantity", node[1], named)
            raise NotRead("two units")
        return ("quantity", node, unit)


_PLAIN_UNITS = {*"km cm mm kg mi ft hr lb in ml kw hz mph kph".split()} - {"in"}
_GREEK_NAMES = {
    *"alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi".split(),
    *"chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega hbar ell Upsilon upsilon".split(),
}  # fmt: skip


def _named(name: str) -> Node:
    return ("constant", name) if name in ("e", "i") else ("symbol", name)


def _renamed(node: Any, variable: str) -> Any:
    """Turn the imaginary unit into the variable i of a sum."""
    if variable not in ("i", "e") or not isinstance(node, tuple):
        return node
    if node == ("constant", variable):
        return ("symbol", variable)
    return tuple(_renamed(part, variable) for part in node)


def _is_whole(node: Node) -> bool:
    return bool(node[0] == "number" and node[1].denominator == 1 and node[2] is None)


def is_product(word: str) -> bool:
    """Return whether letters side by side are a product, such as `ab` or `xyz`, rather than a
    word."""
    if word.casefold() in _NO_PRODUCT:
        return False
    if len(word) <= 2:
        return True
    is_title = word[0].isupper() and word[1:].islower()
    if len(word) > 4 or word.isupper() or is_title:
        return False
    in_a_row = all(ord(b) - ord(a) == 1 for a, b in zip(word, word[1:], strict=False))
    return in_a_row or not set(word.casefold()) & {*"aeiou"}


def _braces(inner: Tokens) -> Node:
    r"""\{1, 2\} or \{x \mid x > 1\}."""
    for mark in ("|", ":"):
        parts = _split(inner, partial(_is, "sign", mark))
        if len(parts) >= 2 and parts[0] and not (mark == "|" and len(parts) > 2 and len(parts) % 2):
            head = _chain(parts[0])
            rest = inner[len(parts[0]) + 1 :]
            variable = head[1][0] if head[0] == "relation" and head[2] == ("in",) else head
            if variable[0] == "symbol":
                condition = _statement(rest)
                if head is not variable:  # x \in \mathbb{N}
                    condition = ("and", head, condition)
                return ("builder", variable[1], condition)
            raise NotRead("a set of what is no variable")
    return ("set", *_items(inner)) if inner else ("set",)
