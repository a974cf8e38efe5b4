r"""Whether an answer has the value of a reference. Like is compared with like, and the reference
says what the answer is read as.

Numbers, expressions, equations, sets, pairs, intervals, ratios, matrices and congruences are trees
of `parsing.py`; `evaluation.py` says which expressions are equal, and `sets.py` which sets of real
numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import inf
from typing import Any

from . import evaluation
from .evaluation import NoValue, TooLarge
from .parsing import EXPRESSIONS, INFINITY, Node, nodes_in, number, substituted, symbols
from .units import Unit

# A decimal equals a number that it rounds to, if it has at least so many digits.
DECIMALS = 6
_MOST_SIGNS = 4  # plus-minus in one answer
_EQUALITIES = {"=", "~"}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def agrees(gold: Node, answer: Node) -> bool:
    """Return whether the tree of an answer has the value of the tree of a reference."""
    if gold == answer:
        return True
    conditions = [node[2] for node in (gold, answer) if node[0] == "given"]
    gold, answer = (node[1] if node[0] == "given" else node for node in (gold, answer))
    match conditions:
        case [
            ("relation", (k, ("numbers", domain)), ("in",)),
            ("relation", (n, ("numbers", other)), ("in",)),
        ]:
            if domain != other:  # all whole numbers, or some
                return False
            answer = substituted(answer, n, k)
            return _same_family(gold, answer, k[1]) or _same(gold, answer)
        case [first, second]:
            from .sets import real_set

            sets = real_set(first), real_set(second)
            return (None in sets or sets[0] == sets[1]) and _same(gold, answer)
    return _same(gold, answer)


def _same_family(gold: Node, answer: Node, parameter: str) -> bool:
    """Return whether a + bk and c + dk have the same members, for all whole numbers k."""
    values = []
    for node in (gold, answer):
        _, value = equation(node) or (None, node)
        values.append([*evaluation.values_at([{parameter: Fraction(k)} for k in range(3)], value)])
    if not all(len(each) == 3 for each in values):
        return False
    (a, b, c), (d, e, f) = values
    if not b != a:
        return False
    shift = (d - a) / (b - a)
    zeros = [c - b - (b - a), f - e - (e - d), abs(e - d) - abs(b - a), shift - round(shift)]
    return all(abs(zero) < 1e-30 for zero in zeros)


# Several values.


@dataclass(frozen=True)
class Several:
    """Values of several items.

    `kind` is "set", "list", "names", or the brackets of a pair or interval. `repeated` has the items
    of a list that names some of them twice, else nothing.
    """

    items: Sequence[Node]
    kind: str
    names: Sequence[Node] = ()  # what each is the value of
    point: str = ""
    repeated: Sequence[Node] = ()

    def as_node(self) -> Node:
        """Return the tree of an interval or a set of values."""
        if len(self.kind) == 2:
            return ("point" if self.point else "sequence", *self.kind, *self.items)
        return ("set" if self.kind in ("set", "list") else self.kind, *self.items)


def normal(node: Node) -> Node | Several:
    """Return a set, list, pair or system as its items, anything else as it is."""
    match node:
        case ("over", _, _) if _is_name(node):  # dy/dx is not y/x
            return ("opaque", str(node))
        case ("sequence", opening, closing, *items):
            return Several(items, opening + closing)
        case ("point", name, (_, _, _, *items)):
            return Several(items, "()", point=name)
        # a vector in a column is the tuple of its entries
        case ("matrix", *rows) if all(len(row) == 1 for row in rows):
            return Several([entry for (entry,) in rows], "()")
        case ("relation", (("sequence", _, _, *names), ("sequence", _, _, *items)), ("=",)) if len(
            names
        ) == len(items):
            return Several(items, "names", names=names)
        case (
            "relation",
            (
                ("symbol" | "apply" | "opaque", *_),
                ("sequence" | "set" | "point" | "matrix", *_) as value,
            ),
            ("=",),
        ) | ("relation", (("symbol", _), ("set", *_) as value), ("in",)):
            inner = normal(value)
            is_value = isinstance(inner, Several) or value[0] != "matrix"  # A = M is not B = M
            return inner if is_value else node
        case ("set" | "list" | "or" | "and", *_):
            return _of_items(node)
        case (kind, *_) if kind != "congruence" and _count_signs(node):
            return _collected([node], "set")
    return node


def _of_items(node: Node) -> Node | Several:
    kind, *parts = node
    joined = ("or", "and", "list")
    items = [item for part in parts for item in (part[1:] if part[0] in joined else [part])]
    if kind in joined and any(map(_is_range, items)):
        return node
    equations = [*map(equation, items)]
    named = [each for each in equations if each]
    if named and len(named) == len(items):
        names, values = zip(*named, strict=True)
        bases, are_distinct = {*map(_base, names)}, len({*names}) == len(names)
        if len(bases) == 1:
            return _collected(values, "list" if len({*names}) > 1 else "set")
        if are_distinct:
            return Several(values, "names", names=names)
    elif equations[:1] == named and named and not any(item[0] == "relation" for item in items[1:]):
        return _collected([named[0][1], *items[1:]], "set")  # x = 1, 2
    return _collected(items, "list" if kind in ("list", "and") else "set")


def equation(node: Node) -> tuple[Node, Node] | None:
    """Return name and value of `x = 2` and `2 = x`."""
    if node[0] != "relation" or not _EQUALITIES.issuperset(node[2]):
        return None
    first, *_, last = node[1]
    are_names = first[0] == "sequence" and all(map(_is_name, first[3:]))
    if are_names or _is_name(first):
        return first, last
    return (last, first) if _is_name(last) and len(node[1]) == 2 else None


def _is_name(node: Node) -> bool:
    match node:
        case ("symbol" | "opaque" | "point", *_) | ("constant", "i") | ("call", "abs", _):
            return True
        case ("apply", _, ("symbol" | "number", *_)):
            return True
        case ("over", ("times", ("symbol", "d"), _), ("times", ("symbol", "d"), _)):  # dy/dx
            return True
    return False


def _base(name: Node) -> str:
    """Return x for x_1; x and f(x) are their own."""
    return str(name[1]).partition("_")[0] if name[0] == "symbol" else str(name)


def _collected(items: Sequence[Node], kind: str) -> Node | Several:
    """Return items without repetition, with every sign of plus-minus; one item is no collection."""
    values = [value for item in items for value in _expanded(item)]
    kept: dict[Any, Node] = {}
    for value in values:
        key = _plain_number(value)
        if key not in kept and (
            key is not value or not any(_is_repeated(value, other) for other in kept.values())
        ):
            kept[key] = value
    only = next(iter(kept.values()), None)
    if only is not None and len(kept) == 1 and only[0] not in ("set", "numbers"):
        return normal(only)
    return Several([*kept.values()], kind, repeated=values if len(values) > len(kept) else ())


def _plain_number(node: Node) -> Any:
    """Return the value of a written number, of which there may be many; an expression as it is."""
    match node:
        case ("number", value, _):
            return value
        case ("negative", ("number", value, _)):
            return -value
    return node


def _is_repeated(first: Node, second: Node) -> bool:
    return first[0] in EXPRESSIONS and second[0] in EXPRESSIONS and _same(first, second)


def _count_signs(node: Node) -> int:
    return sum(part[0] == "plus-minus" for part in nodes_in(node))


def _expanded(node: Node) -> list[Node]:
    r"""Return both values of 1 \pm 2; where \mp occurs, the signs change together."""
    count = _count_signs(node)
    if not 0 < count <= _MOST_SIGNS:
        return [node]
    are_linked = any(part[0] == "plus-minus" and part[3] == "mp" for part in nodes_in(node))
    choices = (
        [(True,) * count, (False,) * count] if are_linked else product((True, False), repeat=count)
    )
    return [_with_signs(node, iter(choice)) for choice in choices]


def _with_signs(node: Any, choice: Iterator[bool]) -> Any:
    match node:
        case ("plus-minus", first, second, sign):
            first = _with_signs(first, choice)
            is_plus = next(choice) == (sign == "pm")
            second = _with_signs(second, choice)
            return ("add", first, second if is_plus else ("negative", second))
        case tuple():
            return tuple(_with_signs(part, choice) for part in node)
    return node


# Comparing.


def _same(gold: Node, answer: Node) -> bool:
    return _agrees(normal(gold), normal(answer))


def _agrees(gold: Node | Several, answer: Node | Several) -> bool:
    if isinstance(gold, Several) and isinstance(answer, Several):
        if gold.kind == answer.kind == "list" and gold.repeated and answer.repeated:
            return _same_set(gold.repeated, answer.repeated)  # 1, 1, 2 is not 1, 2, 2
        if _agree_in_items(gold, answer):
            return True
        has_interval = not {gold.kind, answer.kind} <= {"set", "list", "names"}
        return has_interval and gold.kind != answer.kind and _agree_as_sets(gold, answer)
    if isinstance(gold, Several) or isinstance(answer, Several):
        is_expression = not isinstance(gold, Several) and gold[0] in EXPRESSIONS
        return not is_expression and _agree_as_sets(gold, answer)
    if gold == answer:
        return True
    compare = _COMPARE.get(gold[0], _is_value if gold[0] in EXPRESSIONS else None)
    return compare is not None and compare(gold, answer)


def _agree_as_sets(gold: Node | Several, answer: Node | Several) -> bool:
    from .sets import are_same_sets

    nodes = (node.as_node() if isinstance(node, Several) else node for node in (gold, answer))
    return are_same_sets(*nodes)


def _agree_in_items(gold: Several, answer: Several) -> bool:
    kinds = {gold.kind, answer.kind}
    if len(gold.items) != len(answer.items) or (
        gold.point and answer.point not in ("", gold.point)
    ):
        return False
    if kinds == {"names"}:
        theirs = dict(zip(answer.names, answer.items, strict=True))
        ours = zip(gold.names, gold.items, strict=True)
        return all(name in theirs and _same(value, theirs[name]) for name, value in ours)
    if kinds <= {"set", "list"}:
        return _same_set(gold.items, answer.items)
    if "names" in kinds or kinds in ({"list", "()"}, {"list", "[]"}):
        return "set" not in kinds and _all_same(_in_order(gold), _in_order(answer))
    return len(kinds) == 1 and _all_same(gold.items, answer.items)


def _in_order(several: Several) -> Sequence[Node]:
    """Return the pair of x = 2, y = -2 as written; of y = -2, x = 2 as x, y, z are ordered, since
    no order of the other unknowns is certain."""
    letters = [name[1] for name in several.names]
    if letters and {*letters} <= {"x", "y", "z"}:
        return [item for _, item in sorted(zip(letters, several.items, strict=True))]
    return several.items


def _all_same(gold: Sequence[Node], answer: Sequence[Node]) -> bool:
    return len(gold) == len(answer) and all(map(_same, gold, answer))


def _same_set(gold: Sequence[Node], answer: Sequence[Node]) -> bool:
    left = [*answer]
    for item in gold:
        same = (other for other in left if _same(item, other))
        match = item if item in left else next(same, None)
        if match is None:
            return False
        left.remove(match)
    return not left


# Numbers and expressions.


def _is_value(gold: Node, answer: Node) -> bool:
    """Return whether an answer, which may be a chain of equations, has the value of an
    expression."""
    if answer[0] == "relation":
        return _ends_in(answer, gold)
    if answer[0] == "ratio" and len(answer) == 3:
        return are_same(gold, ("over", *answer[1:]))
    if infinite := _infinity(gold):
        return _infinity(answer) == infinite
    return answer[0] in EXPRESSIONS and are_same(gold, answer)


def _infinity(node: Node) -> int:
    """Return the sign of an infinity, else 0."""
    if INFINITY not in nodes_in(node):
        return 0
    if node in (INFINITY, ("negative", INFINITY)):
        return 1 if node == INFINITY else -1
    from .symbolic import infinity

    return infinity(node) or 0


def _ends_in(chain: Node, gold: Node) -> bool:
    """Return whether a true chain of equations gives the value of an expression, beside a name."""
    sides, signs = chain[1:]
    if not _EQUALITIES.issuperset(signs):
        return False
    if _infinity(gold):
        return _infinity(sides[-1]) == _infinity(gold)
    numbers = [*filter(is_number, sides)]
    others = [side for side in sides if side not in numbers]
    if numbers:
        exact = _exact(numbers, "~" in signs)
        if len(others) > 2 or symbols(gold) or exact is None:
            return False
        # a rounded number answers only a gold that is one
        return any(are_same(gold, side) for side in (numbers if _decimals(gold) else [exact]))
    ends = [side for side in (others[0], others[-1]) if _is_name(side)]
    values = [side for side in others if side[0] in EXPRESSIONS]
    if ends and len(others) > 1:
        values = [side for side in values if side is not ends[0]] or values
        if symbols(ends[0]) & symbols(gold) and ends[0][0] != "apply":
            return False
    return 0 < len(values) >= len(others) - 1 and all(are_same(gold, side) for side in values)


def _exact(numbers: Sequence[Node], is_about: bool = False) -> Node | None:
    """Return the number of a chain that all others equal or round; None if the chain is false."""
    exact = max(numbers, key=_places)
    is_true = all(
        each is exact or are_same(exact, each) or _rounds_to(exact, each, is_about)
        for each in numbers
    )
    return exact if is_true else None


def _places(node: Node) -> float:
    """Return how many decimals a written number has; infinitely many for an expression."""
    node = without_unit(node)
    if node[0] in ("negative", "percent"):
        return _places(node[1])
    return (node[2] or 0) if node[0] == "number" else inf


def _decimals(node: Node) -> int:
    """Return how many decimals a written decimal has; 0 for another number."""
    places = _places(node)
    return 0 if places == inf else int(places)


def _rounds_to(exact: Node, rounded: Node, is_about: bool) -> bool:
    """Return whether a written number is a rounding of another one, to its last digit; a whole
    number only where the chain says that it is about equal."""
    places = _places(rounded)
    if not (places or is_about) or _places(exact) <= places:
        return False
    try:
        a, b = (float(evaluation.evaluate(without_unit(node))) for node in (exact, rounded))
    except (NoValue, TooLarge, OverflowError, TypeError):
        return False
    # the last of several digits may be cut off rather than rounded
    return abs(a - b) <= (1.001 if places > 1 else 0.501) * 10.0**-places


def are_same(gold: Node, answer: Node) -> bool:
    """Return whether two expressions are one value, with their units."""
    (first, unit), (second, other) = _quantity(gold), _quantity(answer)
    if unit is not None and other is not None:
        if not unit.may_equal(other):
            return False
        if unit.exponents is not None and unit.size != other.size:
            first, second = (
                ("times", first, number(unit.size)),
                ("times", second, number(other.size)),
            )
            return evaluation.are_equal(first, second)
    return _same_numbers(first, second)


def _quantity(node: Node) -> tuple[Node, Unit | None]:
    """Return an expression and its unit; a sum of quantities has the unit of its parts."""
    match node:
        case ("quantity", inner, unit):
            inner, before = _quantity(inner)
            return inner, before if before is not None and unit.exponents is None else unit
        case ("negative" | "add" | "times" | "over" as kind, *parts):
            bare, found = zip(*map(_quantity, parts), strict=True)
            named = [unit for unit in found if unit is not None]
            if kind in ("times", "over"):
                is_one = len(named) == 1 and (kind == "times" or found[0] is not None)
            else:
                is_one = len(named) == len(parts) and all(unit == named[0] for unit in named)
            return ((kind, *bare), named[0]) if is_one else (node, None)
    return node, None


def unit_of(node: Node) -> Unit | None:
    """Return the unit of an expression, None without a known one."""
    unit = _quantity(node)[1]
    return unit if unit is not None and unit.exponents is not None else None


def without_unit(node: Node) -> Node:
    """Return the number of a quantity; anything else as it is."""
    return _quantity(node)[0]


def is_number(node: Node) -> bool:
    """Return whether an expression has no symbols."""
    return node[0] in EXPRESSIONS and not symbols(node)


def _same_numbers(gold: Node, answer: Node) -> bool:
    match gold, answer:
        case ("percent", share), ("percent", other):
            return _same_numbers(share, other)
        case (("percent", share), other) | (other, ("percent", share)):
            return _is_percentage(share, other)
        case ("based", *_), ("based", *_):  # 12_3 is not 12_5
            return gold == answer
        # the base may be left out of an answer
        case (("based", digits, _), other) | (other, ("based", digits, 10)):
            return other == number(int(digits)) if digits.isdecimal() else False
    if evaluation.are_equal(gold, answer):
        return True
    places = [places for places in (_decimals(gold), _decimals(answer)) if places]
    if not places or min(places) < DECIMALS or symbols(gold) or symbols(answer):
        return False
    values = [value for node in (gold, answer) for value in evaluation.values_at([{}], node)]
    if len(values) < 2:
        return False
    is_long = abs(values[1]) * 10 ** (DECIMALS - 1) >= 1
    return bool(is_long and abs(values[0] - values[1]) * 2 * 10 ** min(places) <= 1)


def _is_percentage(share: Node, other: Node) -> bool:
    """25% is 0.25, and 25 with the sign left out; but 0.5% is no 0.5."""
    if _same_numbers(("over", share, number(100)), other):
        return True
    is_large = any(abs(value) >= 1 for value in evaluation.values_at([{}], share))
    return is_large and _same_numbers(share, other)


# Equations and inequalities.


def _same_relation(gold: Node, answer: Node) -> bool:
    sides, signs = gold[1:]
    if _EQUALITIES.issuperset(signs):
        return _same_equation(gold, answer)
    if not symbols(gold):
        return answer[0] == "relation" and signs == answer[2] and _all_same(sides, answer[1])
    if _agree_as_sets(gold, answer):
        return True
    if answer[0] != "relation" or len(signs) != 1 or len(answer[2]) != 1:
        return False
    others, (sign,) = answer[1:]
    if sign != signs[0]:
        others, sign = others[::-1], _FLIPPED.get(sign, sign)
    return (
        sign == signs[0]
        and all(side[0] in EXPRESSIONS for side in (*sides, *others))
        and _are_proportional(_difference(sides), _difference(others), is_positive=sign in _FLIPPED)
    )


def _difference(sides: Sequence[Node]) -> Node:
    return ("add", sides[0], ("negative", sides[1]))


def _same_equation(gold: Node, answer: Node) -> bool:
    sides, named = gold[1], equation(gold)
    if named is None and all(side[0] in EXPRESSIONS for side in sides):
        exact = _exact(sides, "~" in gold[2])  # 3^3 = 27
        if exact is not None or not symbols(gold):
            return exact is not None and _is_value(exact, answer)
    if answer[0] in EXPRESSIONS:
        return named is not None and named[1][0] in EXPRESSIONS and _is_value(named[1], answer)
    if answer[0] != "relation" or not _EQUALITIES.issuperset(answer[2]):
        return False
    others = answer[1]
    theirs = equation(answer)
    if named and theirs:
        if _same_name(named[0], theirs[0]):
            numbers = [*filter(is_number, others)]
            is_true = len(numbers) < 2 or _exact(numbers) is not None
            return is_true and _same(named[1], _renamed(theirs[1], theirs[0], named[0]))
        is_read = "opaque" not in (named[0][0], theirs[0][0])
        if is_read and (len(symbols(gold)) < 2 or len(symbols(answer)) < 2):
            return False
    if len(sides) != 2 or len(others) != 2:
        return False
    if not all(side[0] in EXPRESSIONS for side in (*sides, *others)):
        return all(map(_same, sides, others))
    return _are_proportional(_difference(sides), _difference(others)) or (
        named is not None and named[0][0] == "symbol" and _solves(named[0][1], named[1], others)
    )


def _same_name(first: Node, second: Node) -> bool:
    """Return whether two names may name one thing: f(x) and f(t), but not P(A) and P(B)."""
    match first, second:
        case ("opaque", name), ("opaque", other):
            return name == other or "(" not in name or "(" not in other
        case (("opaque", _), _) | (_, ("opaque", _)):
            return True
        case ("apply", name, ("symbol", x)), ("apply", other, ("symbol", t)):
            return first == second or (name == other and not x.isupper() and not t.isupper())
        case (("apply", *_), ("symbol", "y")) | (("symbol", "y"), ("apply", *_)):
            return True
    return first == second


def _renamed(node: Any, old: Node, new: Node) -> Any:
    """Return f(t) = 2t as f(x) = 2x."""
    if not old[0] == new[0] == "apply" or old[2] == new[2]:
        return node
    if new[2][1] in symbols(node):  # f(t) = 2x says nothing of x
        return ("opaque", "")
    return substituted(node, old[2], new[2])


def _are_proportional(first: Node, second: Node, is_positive: bool = False) -> bool:
    """Return whether two expressions differ by a constant factor, so that both vanish together."""
    names = sorted(symbols(first) | symbols(second))
    points = evaluation.points(names, first, second)
    ratios = [*evaluation.values_at(points, ("over", first, second))]
    if len(ratios) < 3 or ratios[0] == 0 or (is_positive and not ratios[0] > 0):
        return False
    return all(abs(ratio / ratios[0] - 1) < 1e-40 for ratio in ratios)


def _solves(name: str, value: Node, sides: Sequence[Node]) -> bool:
    """Return whether an equation, linear in a name, has this value as its solution."""
    if name in symbols(value):
        return False
    difference = _difference(sides)
    at = [
        substituted(difference, ("symbol", name), ("add", value, number(step))) for step in range(3)
    ]
    is_solved = evaluation.are_equal(number(0), at[0]) and not evaluation.are_equal(
        number(0), at[1]
    )
    return is_solved and evaluation.are_equal(("times", number(2), at[1]), at[2])


# The other kinds.


def _same_ratio(gold: Node, answer: Node) -> bool:
    answer = _last_side(answer)
    if answer[0] != "ratio":
        return len(gold) == 3 and answer[0] in EXPRESSIONS and are_same(("over", *gold[1:]), answer)
    first, *ours = gold[1:]
    second, *theirs = answer[1:]
    return len(ours) == len(theirs) and all(
        are_same(("times", first, other), ("times", second, each))
        for each, other in zip(ours, theirs, strict=True)
    )


def _last_side(node: Node) -> Node:
    """Return the value of a chain of equations."""
    is_chain = node[0] == "relation" and _EQUALITIES.issuperset(node[2])
    return node[1][-1] if is_chain else node


def _same_matrix(gold: Node, answer: Node) -> bool:
    answer = _last_side(answer)
    return (
        answer[0] == "matrix"
        and len(gold) == len(answer)
        and all(map(_all_same, gold[1:], answer[1:]))
    )


def _same_congruence(gold: Node, answer: Node) -> bool:
    if answer[0] != "congruence" or not are_same(gold[3], answer[3]):
        return False
    is_named = ("symbol", "") not in (gold[1], answer[1])
    return (not is_named or are_same(gold[1], answer[1])) and _residues(gold) == _residues(answer)


def _residues(node: Node) -> set[Any]:
    cases = [case for side in map(_last_side, node[2]) for case in _expanded(side)]
    try:
        modulus = evaluation.evaluate(node[3])
        return {evaluation.evaluate(case) % modulus for case in cases}
    except (NoValue, TooLarge):  # of symbols
        return {*cases}


def _same_pieces(gold: Node, answer: Node) -> bool:
    answer = _last_side(answer)
    if answer[0] != "pieces" or len(gold) != len(answer):
        return False
    return all(any(_all_same(piece, other) for other in answer[1:]) for piece in gold[1:])


def _is_range(node: Node) -> bool:
    return node[0] == "relation" and not {"!=", *_FLIPPED}.isdisjoint(node[2])


_COMPARE: Mapping[str, Callable[[Node, Node], bool]] = {
    "relation": _same_relation, "ratio": _same_ratio, "matrix": _same_matrix, "congruence": _same_congruence,
    "pieces": _same_pieces,
    **dict.fromkeys("builder numbers union intersection without or and list".split(), _agree_as_sets),
}  # fmt: skip
