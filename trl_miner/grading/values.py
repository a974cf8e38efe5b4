r"""Whether an answer has the value of a reference. Like is compared with like, and the reference
says what the answer is read as.

Numbers, expressions, equations, sets, pairs, intervals, ratios, matrices and congruences are trees
of `parsing.py`; `evaluation.py` says which expressions are equal.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

from . import evaluation
from .evaluation import NoValue, TooLarge
from .parsing import Node, symbols
from .units import Unit

EXPRESSIONS = {
    *"number symbol constant add negative times over power call apply sum product integral".split(),
    *"limit percent quantity based".split(),
}  # fmt: skip
# A decimal equals a number that it rounds to, if it has at least so many digits.
DECIMALS = 6
_MOST_SIGNS = 4  # plus-minus in one answer


def agrees(gold: Node, answer: Node) -> bool:
    """Return whether the tree of an answer has the value of the tree of a reference."""
    if gold == answer:
        return True
    conditions: list[Any] = [node[2] for node in (gold, answer) if node[0] == "given"]
    gold, answer = (node[1] if node[0] == "given" else node for node in (gold, answer))
    if len(conditions) == 2:
        parameters = [_parameter(condition) for condition in conditions]
        if None not in parameters:
            answer = substituted(answer, parameters[1], parameters[0])
            if conditions[0][1][1] != conditions[1][1][1]:  # all whole numbers, or some
                return False
            if _same_family(gold, answer, parameters[0]):
                return True
        else:
            sets = [_real_set(condition) for condition in conditions]
            if None not in sets and sets[0] != sets[1]:
                return False
    return _agrees(normal(gold), normal(answer))


def substituted(node: Any, old: Node | None, new: Node | None) -> Any:
    """Return a tree in which one part stands for another."""
    if node == old:
        return new
    return tuple(substituted(part, old, new) for part in node) if isinstance(node, tuple) else node


def _parameter(condition: Any) -> Any:
    r"""Return k of k \in \mathbb{Z}."""
    if condition[0] == "relation" and condition[2] == ("in",) and condition[1][1][0] == "numbers":
        return condition[1][0]
    return None


def _same_family(gold: Node, answer: Node, parameter: Node | None) -> bool:
    """Return whether two families, linear in a whole number, have the same members."""
    named = [equation(node) or (None, node) for node in (gold, answer)]
    first, second = (node[1] for node in named)
    if first[0] not in EXPRESSIONS or second[0] not in EXPRESSIONS:
        return False
    at = [
        [substituted(node, parameter, ("number", Fraction(place), None)) for place in (0, 1, 2)]
        for node in (first, second)
    ]
    steps = [_difference((each[1], each[0])) for each in at]
    if any(symbols(node) for each in at for node in each) or not all(
        are_same(step, _difference((each[2], each[1])))
        for step, each in zip(steps, at, strict=True)
    ):
        return False
    try:
        shift = evaluation.evaluate(("over", _difference((at[1][0], at[0][0])), steps[0]))
    except (NoValue, TooLarge):
        return False
    is_whole = abs(shift - round(float(shift.real))) < 1e-30
    return is_whole and any(are_same(steps[0], step) for step in (steps[1], ("negative", steps[1])))


# Several values.


class Several:
    """Values of several items: `in_order`, a pair or a list; `names`, what each is the value
    of."""

    def __init__(
        self,
        items: Sequence[Node],
        names: Sequence[Node] | None = None,
        kind: str = "set",
        point: str = "",
        repeated: Sequence[Node] = (),
    ) -> None:
        self.items, self.names, self.kind, self.point = list(items), list(names or ()), kind, point
        self.repeated = list(repeated)  # a list with the items that it names twice; empty: none


def normal(node: Node) -> Node | Several:
    """Return a set, list, pair or system as its items, anything else as it is."""
    if node[0] == "over" and _is_name(node):  # dy/dx is not y/x
        return ("opaque", str(node))
    if node[0] == "sequence":
        return Several(node[3:], kind=node[1] + node[2])
    if node[0] == "point":
        return Several(node[2][3:], kind="()", point=node[1])
    if node[0] == "relation" and set(node[2]) == {"="} and len(node[1]) == 2:
        left, right = node[1]
        if left[0] == right[0] == "sequence" and len(left) == len(right):
            return Several(right[3:], names=left[3:], kind="names")
        if right[0] in ("sequence", "set", "point") and left[0] in ("symbol", "apply", "opaque"):
            return normal(right)
        if left[0] == "sequence":
            return node
    if (
        node[0] == "relation"
        and node[2] == ("in",)
        and node[1][1][0] == "set"
        and node[1][0][0] == "symbol"
    ):
        return normal(node[1][1])
    if node[0] in ("set", "list", "or", "and"):
        return _items(node)
    if _signs(node) and node[0] != "congruence":
        return _collected([node], "set")
    return node


def _items(node: Node) -> Node | Several:
    items = [
        part
        for each in node[1:]
        for part in (each[1:] if each[0] in ("or", "and", "list") else [each])
    ]
    if node[0] in ("or", "and", "list") and any(_is_range(item) for item in items):
        return node
    equations = [equation(item) for item in items]
    if items and all(equations):
        names = [equation[0] for equation in equations]  # type: ignore[index]
        values = [equation[1] for equation in equations]  # type: ignore[index]
        if len({_base(name) for name in names}) > 1 and len({*names}) == len(names):
            return Several(values, names=names, kind="names")
        if len({_base(name) for name in names}) == 1:
            return _collected(values, "list" if len({*names}) > 1 else "set")
    elif (
        items
        and equations[0]
        and not any(equations[1:])
        and not any(item[0] == "relation" for item in items[1:])
    ):
        return _collected([equations[0][1], *items[1:]], "set")  # x = 1, 2
    return _collected(items, {"list": "list", "and": "list"}.get(node[0], "set"))


def equation(node: Node) -> tuple[Node, Node] | None:
    """Return name and value of `x = 2` and `2 = x`."""
    if node[0] != "relation" or not set(node[2]) <= {"=", "~"}:
        return None
    sides = node[1]
    if _is_name(sides[0]):
        return sides[0], sides[-1]
    if _is_name(sides[-1]) and len(sides) == 2:
        return sides[1], sides[0]
    if sides[0][0] == "sequence" and all(_is_name(part) for part in sides[0][3:]):
        return sides[0], sides[-1]
    return None


def _is_name(node: Node) -> bool:
    if node[0] == "over" and all(part[0] == "times" for part in node[1:]):  # dy/dx
        return all(part[1] == ("symbol", "d") for part in node[1:])
    return (
        node[0] in ("symbol", "opaque")
        or (node[0] == "apply" and node[2][0] in ("symbol", "number"))
        or (node[0] == "point" or node == ("constant", "i") or node[:2] == ("call", "abs"))
    )


def _base(name: Node) -> str:
    """Return x for x_1; x and f(x) are their own."""
    return str(name[1]).partition("_")[0] if name[0] == "symbol" else str(name)


def _collected(items: Sequence[Node], kind: str) -> Node | Several:
    """Return items without repetition, with every sign of plus-minus; one item is no collection."""
    values = [value for item in items for value in _expanded(item)]
    kept: list[Node] = []
    numbers = set()  # of which there may be many
    for value in values:
        plain = _plain_number(value)
        if plain is not None:
            if plain not in numbers:
                numbers.add(plain)
                kept.append(value)
        elif not any(
            value == other or (_is_quick(value, other) and _same(value, other)) for other in kept
        ):
            kept.append(value)
    if len(kept) == 1 and kept[0][0] not in ("set", "numbers"):
        return normal(kept[0])
    return Several(kept, kind=kind, repeated=values if len(values) > len(kept) else ())


def _plain_number(node: Node) -> Any:
    """Return the value of a written number, None for an expression."""
    if node[0] == "negative" and node[1][0] == "number":
        return -node[1][1]
    return node[1] if node[0] == "number" else None


def _is_quick(first: Node, second: Node) -> bool:
    return first[0] in EXPRESSIONS and second[0] in EXPRESSIONS


def _signs(node: Any) -> int:
    if not isinstance(node, tuple):
        return 0
    return (bool(node) and node[0] == "plus-minus") + sum(map(_signs, node))


def _expanded(node: Node) -> list[Node]:
    r"""Return both values of 1 \pm 2; where \mp occurs, the signs change together."""
    count = _signs(node)
    if count == 0:
        return [node]
    if count > _MOST_SIGNS:
        return [node]
    has_both = "mp" in str(node)
    choices = (
        [(True,) * count, (False,) * count] if has_both else product((True, False), repeat=count)
    )
    return [_with_signs(node, iter(choice)) for choice in choices]


def _with_signs(node: Any, choice: Any) -> Any:
    if not isinstance(node, tuple) or not node:
        return node
    if node[0] == "plus-minus":
        first = _with_signs(node[1], choice)
        is_plus = next(choice) == (node[3] == "pm")
        second = _with_signs(node[2], choice)
        return ("add", first, second if is_plus else ("negative", second))
    return tuple(_with_signs(part, choice) for part in node)


# Comparing.


def _agrees(gold: Node | Several, answer: Node | Several) -> bool:
    if isinstance(gold, Several):
        if isinstance(answer, Several):
            if gold.kind == answer.kind == "list" and gold.repeated and answer.repeated:
                return _same_set(gold.repeated, answer.repeated)  # 1, 1, 2 is not 1, 2, 2
            return _agree_in_items(gold, answer) or _agree_as_sets(gold, answer)
        return _agree_as_sets(gold, answer) or (
            answer[0] == "matrix" and _agree_as_column(answer, gold)
        )
    if isinstance(answer, Several):
        if gold[0] == "matrix":
            return _agree_as_column(gold, answer)
        if len(answer.items) == 2 and answer.kind == "[]" and gold[0] in EXPRESSIONS:  # [5, 5]
            return all(_same(gold, item) for item in answer.items)
        return gold[0] not in EXPRESSIONS and _agree_as_sets(gold, answer)
    compare: Callable[[Node, Node], bool] | None = _COMPARE.get(gold[0])
    if compare is not None:
        return compare(gold, answer)
    if gold[0] in EXPRESSIONS:
        return _is_value(gold, answer)
    return gold == answer


def _agree_in_items(gold: Several, answer: Several) -> bool:
    if len(gold.items) != len(answer.items) or (
        gold.point and answer.point not in ("", gold.point)
    ):
        return False
    if gold.names and answer.names:
        return _agree_in_names(gold, answer)
    kinds = gold.kind, answer.kind
    if "names" in kinds or "list" in kinds and set(kinds) & {"()", "[]"}:
        if "set" in kinds:
            return False
        return _all_same(_in_order(gold), _in_order(answer))
    if kinds[0] in ("set", "list") and kinds[1] in ("set", "list"):
        return _same_set(gold.items, answer.items)
    return kinds[0] == kinds[1] and _all_same(gold.items, answer.items)


def _agree_in_names(gold: Several, answer: Several) -> bool:
    theirs = dict(zip(answer.names, answer.items, strict=True))
    ours = zip(gold.names, gold.items, strict=True)
    return all(name in theirs and _same(value, theirs[name]) for name, value in ours)


def _in_order(several: Several) -> list[Node]:
    """Return the pair of x = 2, y = -2 as written; of y = -2, x = 2 as x, y, z are ordered, since
    no order of the other unknowns is certain."""
    letters = [name[1] for name in several.names]
    if letters and set(letters) <= {"x", "y", "z"}:
        of_letters = dict(zip(letters, several.items, strict=True))
        return [of_letters[letter] for letter in sorted(letters)]
    return several.items


def _all_same(gold: Sequence[Node], answer: Sequence[Node]) -> bool:
    return len(gold) == len(answer) and all(map(_same, gold, answer))


def _same(gold: Node, answer: Node) -> bool:
    return _agrees(normal(gold), normal(answer))


def _same_set(gold: Sequence[Node], answer: Sequence[Node]) -> bool:
    left = list(answer)
    for item in gold:
        if item in left:
            left.remove(item)
            continue
        place = next((index for index, other in enumerate(left) if _same(item, other)), None)
        if place is None:
            return False
        del left[place]
    return not left


def _agree_as_column(matrix: Node, several: Several) -> bool:
    r"""A vector in a column is the tuple of its entries."""
    if several.kind != "()" or not all(len(row) == 1 for row in matrix[1:]):
        return False
    return _all_same([row[0] for row in matrix[1:]], several.items)


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
    if not (isinstance(node, tuple) and _mentions_infinity(node)):
        return 0
    if node[0] == "constant":
        return 1
    if node[0] == "negative":
        return -_infinity(node[1])
    from .symbolic import infinity

    return infinity(node)


def _mentions_infinity(node: Any) -> bool:
    return node == ("constant", "infinity") or (
        isinstance(node, tuple) and any(map(_mentions_infinity, node))
    )


def _ends_in(chain: Node, gold: Node) -> bool:
    """Return whether a true chain of equations gives the value of an expression, beside a name."""
    sides, signs = chain[1:]
    if not set(signs) <= {"=", "~"}:
        return False
    if _infinity(gold):
        return _infinity(sides[-1]) == _infinity(gold)
    numbers = [side for side in sides if side[0] in EXPRESSIONS and not symbols(side)]
    others = [side for side in sides if side not in numbers]
    if numbers:
        if len(others) > 2 or symbols(gold) or not _is_true(numbers, "~" in signs):
            return False
        return any(
            are_same(gold, number)
            and not (len(numbers) > 1 and _is_rounded(number, numbers) and not _decimals(gold))
            for number in numbers
        )
    values = [side for side in others if side[0] in EXPRESSIONS]
    name = others[0] if _is_name(others[0]) else others[-1] if _is_name(others[-1]) else None
    if name is not None and len(others) > 1:
        values = [side for side in values if side is not name] or values
        if symbols(name) & symbols(gold) and name[0] != "apply":
            return name == gold and all(are_same(gold, side) for side in values)
    return (
        bool(values)
        and len(values) >= len(others) - 1
        and all(are_same(gold, side) for side in values)
    )


def _is_true(numbers: Sequence[Node], is_about: bool = False) -> bool:
    """Return whether all numbers of a chain are one, but for rounding."""
    places = [_places(number) for number in numbers]
    finest = None if None in places else max(each for each in places if each is not None)
    first = numbers[places.index(finest)]
    return all(
        number is first or are_same(first, number) or _rounds_to(first, number, is_about)
        for number in numbers
    )


def _is_rounded(number: Node, numbers: Sequence[Node]) -> bool:
    """Return whether a written number stands beside a finer one that it rounds."""
    places = _places(number)
    return places is not None and any(
        (_places(other) is None or _places(other) > places) and not are_same(number, other)  # type: ignore[operator]
        for other in numbers
    )


def _places(node: Node) -> int | None:
    """Return how many decimals a written number has; None for an expression."""
    node = _quantity(node)[0]
    if node[0] in ("negative", "percent"):
        return _places(node[1])
    return (node[2] or 0) if node[0] == "number" else None


def _rounds_to(exact: Node, rounded: Node, is_about: bool) -> bool:
    """Return whether a written number is a rounding of another one, to its last digit; a whole
    number only where the chain says that it is about equal."""
    places, finer = _places(rounded), _places(exact)
    if places is None or not (places or is_about) or (finer is not None and finer <= places):
        return False
    try:
        a, b = (evaluation.evaluate(_quantity(node)[0]) for node in (exact, rounded))
        # the last of several digits may be cut off rather than rounded
        return bool(abs(float(a) - float(b)) <= (1.001 if places > 1 else 0.501) * 10.0**-places)
    except (NoValue, TooLarge, OverflowError, TypeError):
        return False


def are_same(gold: Node, answer: Node) -> bool:
    """Return whether two expressions are one value, with their units."""
    (first, unit), (second, other) = _quantity(gold), _quantity(answer)
    if unit is not None and other is not None:
        if not unit.may_equal(other):
            return False
        if unit.exponents is not None and unit.size != other.size:
            sizes = [("number", each.size, None) for each in (unit, other)]
            return evaluation.are_equal(("times", first, sizes[0]), ("times", second, sizes[1]))
    return _same_numbers(first, second)


def _quantity(node: Node) -> tuple[Node, Unit | None]:
    """Return an expression and its unit; a sum of quantities has the unit of its parts."""
    if node[0] == "quantity":
        inner, unit = _quantity(node[1])
        return inner, unit if unit is not None and node[2].exponents is None else node[2]
    if node[0] == "negative":
        inner, unit = _quantity(node[1])
        return ("negative", inner), unit
    if node[0] == "add":
        (first, unit), (second, other) = _quantity(node[1]), _quantity(node[2])
        if unit is not None and unit == other:
            return ("add", first, second), unit
    if node[0] in ("times", "over"):
        first, (second, unit) = node[1], _quantity(node[2])
        if node[0] == "times" and unit is not None:
            return ("times", first, second), unit
        first, unit = _quantity(node[1])
        if unit is not None and _quantity(node[2])[1] is None:
            return (node[0], first, node[2]), unit
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
    if "percent" in (gold[0], answer[0]):
        return _same_percentages(gold, answer)
    if "based" in (gold[0], answer[0]):
        return _same_digits(gold, answer)
    if evaluation.are_equal(gold, answer):
        return True
    places = [places for places in (_decimals(gold), _decimals(answer)) if places]
    if not places or symbols(gold) or symbols(answer):
        return False
    try:
        a, b = evaluation.evaluate(gold), evaluation.evaluate(answer)
    except (NoValue, TooLarge):
        return False
    if min(places) < DECIMALS or isinstance(a, complex) or isinstance(b, complex):
        return False
    context = evaluation.Evaluator({}, 60)
    apart = context.inexact(a) - context.inexact(b)
    size = abs(context.inexact(b)) * 10 ** (DECIMALS - 1)
    return bool(abs(apart) <= context.context.mpf(10) ** -min(places) / 2 and size >= 1)


def _decimals(node: Node) -> int | None:
    """Return how many decimals a written decimal has; None for another number."""
    node = _quantity(node)[0]
    if node[0] in ("negative", "percent"):
        return _decimals(node[1])
    return node[2] if node[0] == "number" else None


def _same_percentages(gold: Node, answer: Node) -> bool:
    """25% is 0.25, and 25 with the sign left out; but 0.5% is no 0.5."""
    if gold[0] == answer[0]:
        return _same_numbers(gold[1], answer[1])
    share, other = (gold[1], answer) if gold[0] == "percent" else (answer[1], gold)
    try:
        size = abs(evaluation.evaluate(share))
    except (NoValue, TooLarge):
        return False
    if size >= 1 and _same_numbers(share, other):
        return True
    return _same_numbers(("over", share, ("number", Fraction(100), None)), other)


def _same_digits(gold: Node, answer: Node) -> bool:
    r"""Numbers with a base: 12_3 is not 12_5; the base may be left out."""
    if gold[0] == answer[0]:
        return gold == answer
    based, other = (gold, answer) if gold[0] == "based" else (answer, gold)
    if gold is other and based[2] != 10:
        return False
    return other[0] == "number" and other[2] is None and str(other[1]) == based[1]


# Equations and inequalities.


def _same_relation(gold: Node, answer: Node) -> bool:
    sides, signs = gold[1:]
    if set(signs) <= {"=", "~"}:
        return _same_equation(gold, answer)
    if not symbols(gold):
        return (
            signs == answer[2] and _all_same(sides, answer[1]) if answer[0] == "relation" else False
        )
    ours = _real_set(gold)
    if ours is not None:
        return _agree_as_sets(gold, answer)
    if answer[0] != "relation" or len(signs) != 1 or len(answer[2]) != 1:
        return gold == answer
    flipped = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
    turned = (answer[1][::-1], (flipped.get(answer[2][0], answer[2][0]),))
    return any(
        sign == signs and all(side[0] in EXPRESSIONS for side in (*sides, *others))
        and _are_proportional(_difference(sides), _difference(others), is_positive=signs[0] in flipped)
        for others, sign in (answer[1:], turned)
    )  # fmt: skip


def _difference(sides: Sequence[Node]) -> Node:
    return ("add", sides[0], ("negative", sides[1]))


def _same_equation(gold: Node, answer: Node) -> bool:
    sides = gold[1]
    named = equation(gold)
    if answer[0] != "relation":
        if named and named[1][0] in EXPRESSIONS:
            return answer[0] in EXPRESSIONS and _is_value(named[1], answer)
        return _is_identity(gold) and answer[0] in EXPRESSIONS and are_same(sides[0], answer)
    if not set(answer[2]) <= {"=", "~"}:
        return False
    theirs = equation(answer)
    if named and theirs:
        if _same_name(named[0], theirs[0]):
            return _same(named[1], _renamed(theirs[1], theirs[0], named[0])) and _is_consistent(
                answer
            )
        if "opaque" not in (named[0][0], theirs[0][0]) and (
            len(symbols(gold)) < 2 or len(symbols(answer)) < 2
        ):
            return False
    if len(sides) != 2 or len(answer[1]) != 2:
        return gold == answer
    if not all(side[0] in EXPRESSIONS for side in (*sides, *answer[1])):
        return all(map(_same, sides, answer[1]))
    if _is_identity(gold):
        return _is_identity(answer) and are_same(sides[0], answer[1][0])
    if not symbols(gold):
        return _is_true(answer[1]) and are_same(sides[0], answer[1][0])
    return _are_proportional(_difference(sides), _difference(answer[1])) or (
        named is not None and named[0][0] == "symbol" and _solves(named[0][1], named[1], answer[1])
    )


def _is_identity(chain: Node) -> bool:
    """Return whether all sides of an equation are the same expression."""
    sides = chain[1]
    return all(side[0] in EXPRESSIONS and are_same(sides[0], side) for side in sides)


def _is_consistent(chain: Node) -> bool:
    numbers = [side for side in chain[1] if side[0] in EXPRESSIONS and not symbols(side)]
    return len(numbers) < 2 or _is_true(numbers)


def _same_name(first: Node, second: Node) -> bool:
    """Return whether two names may name one thing: f(x) and f(t), but not P(A) and P(B)."""
    kinds = {first[0], second[0]}
    if first == second:
        return True
    if "opaque" in kinds:
        return len(kinds) > 1 or not all("(" in name[1] for name in (first, second))
    if kinds == {"apply"}:
        arguments = first[2], second[2]
        is_variable = all(part[0] == "symbol" and not part[1].isupper() for part in arguments)
        return bool(first[1] == second[1]) and is_variable
    return {first[0], second[0]} == {"apply", "symbol"} and ("symbol", "y") in (first, second)


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
    ratios = []
    for point in evaluation.points(names, first, second):
        evaluator = evaluation.Evaluator(point, 60)
        try:
            ratio = evaluator(("over", first, second))
        except (NoValue, TooLarge):
            continue
        if evaluator.is_complex:
            continue
        ratios.append(evaluator.inexact(ratio))
    if len(ratios) < 3 or abs(ratios[0]) == 0 or (is_positive and not ratios[0] > 0):
        return False
    return all(
        abs(ratio - ratios[0])
        <= abs(ratios[0]) * evaluation.Evaluator({}, 60).context.mpf(10) ** -40
        for ratio in ratios
    )


def _solves(name: str, value: Node, sides: Sequence[Node]) -> bool:
    """Return whether an equation, linear in a name, has this value as its solution."""
    if name in symbols(value):
        return False
    difference = _difference(sides)
    names = sorted((symbols(difference) | symbols(value)) - {name})
    count = 0
    for point in evaluation.points(names, difference, value):
        try:
            solution = evaluation.Evaluator(point, 60)(value)
            if not isinstance(solution, Fraction):
                return False
            at = [
                evaluation.Evaluator(point | {name: solution + step}, 60)(difference)
                for step in (0, 1, 2)
            ]
        except (NoValue, TooLarge):
            continue
        is_linear = all(isinstance(each, Fraction) for each in at) and at[2] == 2 * at[1] != 0
        if at[0] != 0 or not is_linear:
            return False
        count += 1
    return count >= 3


# Sets of real numbers.

_INFINITE = {1: Fraction(10) ** 5000, -1: -(Fraction(10) ** 5000)}
Piece = tuple[Fraction, bool, Fraction, bool]


def _is_range(node: Node) -> bool:
    return node[0] == "relation" and bool({*node[2]} & {"<", ">", "<=", ">=", "!="})


class RealSet:
    """A union of intervals, in order and merged."""

    def __init__(self, pieces: Sequence[Piece], variable: str | None) -> None:
        kept = [
            piece
            for piece in pieces
            if piece[0] < piece[2] or (piece[0] == piece[2] and piece[1] and piece[3])
        ]
        self.pieces: list[Piece] = []
        for low, has_low, high, has_high in sorted(
            kept, key=lambda piece: (piece[0], not piece[1])
        ):
            if self.pieces:
                last = self.pieces[-1]
                if low < last[2] or (low == last[2] and (has_low or last[3])):
                    end = max((last[2], last[3]), (high, has_high))
                    self.pieces[-1] = (last[0], last[1], *end)
                    continue
            self.pieces.append((low, has_low, high, has_high))
        self.variable = variable

    def complement(self) -> "RealSet":
        pieces, low, has_low = [], _INFINITE[-1], False
        for start, has_start, end, has_end in self.pieces:
            pieces.append((low, has_low, start, not has_start))
            low, has_low = end, not has_end
        pieces.append((low, has_low, _INFINITE[1], False))
        return RealSet(
            [piece for piece in pieces if piece[0] != piece[2] or piece[1] and piece[3]],
            self.variable,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RealSet) or len(self.pieces) != len(other.pieces):
            return False
        if None not in (self.variable, other.variable) and self.variable != other.variable:
            return False
        return all(
            a[1] == b[1] and a[3] == b[3] and _is_end(a[0], b[0]) and _is_end(a[2], b[2])
            for a, b in zip(self.pieces, other.pieces, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]


def _is_end(first: Fraction, second: Fraction) -> bool:
    return (
        first == second or abs(first - second) <= max(abs(first), abs(second)) / Fraction(10) ** 45
    )


def _agree_as_sets(gold: Node | Several, answer: Node | Several) -> bool:
    ours = _real_set(gold)
    theirs = _real_set(answer) if ours is not None else None
    return ours is not None and theirs is not None and ours == theirs


def _real_set(node: Node | Several) -> RealSet | None:
    """Return the set of real numbers that a node describes; None if it describes none."""
    if isinstance(node, Several):
        if len(node.items) == 2 and not node.point and len(node.kind) == 2:
            return _interval(node.items, node.kind, None)
        return _points(node.items) if node.kind in ("set", "list") else None
    kind = node[0]
    if kind == "sequence" and len(node) == 5:
        return _interval(node[3:], node[1] + node[2], None)
    if kind == "set":
        return _points(node[1:])
    if kind == "numbers":
        return {"R": RealSet([(_INFINITE[-1], False, _INFINITE[1], False)], None),
                "R^+": RealSet([(Fraction(0), False, _INFINITE[1], False)], None)}.get(node[1])  # fmt: skip
    if kind in ("union", "intersection", "without", "or", "and", "list"):
        return _combined(node)
    if kind == "builder":
        inner = _real_set(node[2])
        return inner if inner is not None and inner.variable in (None, node[1]) else None
    return _solved(node) if kind == "relation" else None


def _end(node: Node) -> Any:
    """Return an end of an interval as a number; None if it is none."""
    if (sign := _infinity(node)) != 0:
        return _INFINITE[sign]
    node = _quantity(node)[0]
    if node[0] not in EXPRESSIONS or symbols(node):
        return None
    try:
        value = evaluation.evaluate(node)
    except (NoValue, TooLarge):
        return None
    if isinstance(value, Fraction):
        return value
    return _fraction(value.real) if value.imag == 0 else None


def _fraction(value: Any) -> Fraction:
    """Return a number of mpmath as it is stored."""
    sign, mantissa, exponent, _ = value._mpf_
    return Fraction(-int(mantissa) if sign else int(mantissa)) * Fraction(2) ** int(exponent)


def _interval(items: Sequence[Node], brackets: str, variable: str | None) -> RealSet | None:
    low, high = map(_end, items)
    if low is None or high is None or low > high:
        return None
    return RealSet([(low, brackets[0] == "[", high, brackets[1] == "]")], variable)


def _points(items: Sequence[Node]) -> RealSet | None:
    if any(item[0] == "quantity" and item[2].exponents is None for item in items):
        return None  # 5 boys and 3 girls are no set of numbers
    ends = [_end(value) for item in items for value in _expanded(item)]
    return None if None in ends else RealSet([(end, True, end, True) for end in ends], None)


def _combined(node: Node) -> RealSet | None:
    parts = [_real_set(part) for part in node[1:]]
    if None in parts or (node[0] == "list" and not any(map(_is_range, node[1:]))):
        return None
    variables = {part.variable for part in parts if part is not None and part.variable}
    if len(variables) > 1:
        return None
    variable = variables.pop() if variables else None
    whole: RealSet | None = None
    for part in parts:
        assert part is not None
        if whole is None:
            whole = part
        elif node[0] in ("union", "or"):
            whole = RealSet([*whole.pieces, *part.pieces], variable)
        else:
            outside = part if node[0] == "without" else part.complement()
            whole = RealSet([*whole.complement().pieces, *outside.pieces], variable).complement()
    if node[0] == "list" and whole is not None and not whole.pieces:  # x < -1, x > 1
        return _combined(("or", *node[1:]))
    return None if whole is None else RealSet(whole.pieces, variable)


def _solved(node: Node) -> RealSet | None:
    """The solutions of a chain of inequalities in one variable."""
    sides, signs = node[1:]
    if "in" in signs:
        inner = _real_set(sides[1]) if signs == ("in",) and sides[0][0] == "symbol" else None
        return None if inner is None else RealSet(inner.pieces, sides[0][1])
    names = symbols(node)
    if len(names) != 1 or not {*signs} <= {"<", "<=", ">", ">=", "!="}:
        return None
    (name,) = names
    whole: RealSet | None = None
    for left, sign, right in zip(sides, signs, sides[1:], strict=False):
        part = _half_line(left, sign, right, name)
        if part is None:
            return None
        if whole is not None:
            part = RealSet(
                [*whole.complement().pieces, *part.complement().pieces], name
            ).complement()
        whole = part
    return whole


def _half_line(left: Node, sign: str, right: Node, name: str) -> RealSet | None:
    flipped = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}
    if right == ("symbol", name):
        left, sign, right = right, flipped[sign], left
    if left == ("symbol", name):
        end = _end(right)
        if end is None:
            return None
        if sign == "!=":
            return RealSet([(end, True, end, True)], name).complement()
        if sign in ("<", "<="):
            return RealSet(
                [(_INFINITE[-1], False, end, sign == "<=" and abs(end) != _INFINITE[1])], name
            )
        return RealSet(
            [(end, sign == ">=" and abs(end) != _INFINITE[1], _INFINITE[1], False)], name
        )
    from .symbolic import solutions

    if left[0] not in EXPRESSIONS or right[0] not in EXPRESSIONS:
        return None
    found = solutions((left, sign, right), name)
    return None if found is None else RealSet([_as_piece(piece) for piece in found], name)


def _as_piece(piece: Piece) -> Piece:
    import sympy

    def end(value: Any) -> Any:
        if value in (sympy.oo, -sympy.oo):
            return _INFINITE[1 if value == sympy.oo else -1]
        if value.is_Rational:
            return Fraction(int(value.p), int(value.q))
        return Fraction(str(value.evalf(85)))

    return end(piece[0]), piece[1], end(piece[2]), piece[3]


# The other kinds.


def _same_ratio(gold: Node, answer: Node) -> bool:
    first = gold[1:]
    if answer[0] == "relation":
        answer = answer[1][-1] if equation(answer) or answer[1][0][0] == "ratio" else answer
    if answer[0] == "ratio":
        second = answer[1:]
        return len(first) == len(second) and all(
            are_same(("times", first[0], other), ("times", second[0], one))
            for one, other in zip(first[1:], second[1:], strict=True)
        )
    return len(first) == 2 and answer[0] in EXPRESSIONS and are_same(("over", *first), answer)


def _last_side(node: Node) -> Node:
    return node[1][-1] if node[0] == "relation" else node


def _same_matrix(gold: Node, answer: Node) -> bool:
    answer = _last_side(answer)
    if answer[0] != "matrix" or len(gold) != len(answer):
        return False
    return all(_all_same(a, b) for a, b in zip(gold[1:], answer[1:], strict=True))


def _same_congruence(gold: Node, answer: Node) -> bool:
    if answer[0] != "congruence" or not are_same(gold[3], answer[3]):
        return False
    if ("symbol", "") not in (gold[1], answer[1]) and not are_same(gold[1], answer[1]):
        return False
    return _residues(gold) == _residues(answer)


def _residues(node: Node) -> set[Any]:
    parts = [part for side in map(_last_side, node[2]) for part in _expanded(side)]
    try:
        modulus = evaluation.evaluate(node[3])
        return {evaluation.evaluate(part) % modulus for part in parts}
    except (NoValue, TooLarge, KeyError, TypeError):  # of symbols
        return {*parts}


def _same_pieces(gold: Node, answer: Node) -> bool:
    answer = _last_side(answer)
    if answer[0] != "pieces" or len(gold) != len(answer):
        return False
    return all(any(_all_same(piece, other) for other in answer[1:]) for piece in gold[1:])


def _same_as_set(gold: Node, answer: Node) -> bool:
    return gold == answer or _agree_as_sets(gold, answer)


_COMPARE: dict[str, Callable[[Node, Node], bool]] = {
    "relation": _same_relation, "ratio": _same_ratio, "matrix": _same_matrix, "congruence": _same_congruence,
    "pieces": _same_pieces, "builder": _same_as_set, "numbers": _same_as_set, "union": _same_as_set,
    "intersection": _same_as_set, "without": _same_as_set, "or": _same_as_set, "and": _same_as_set,
    "list": _same_as_set,
}  # fmt: skip
