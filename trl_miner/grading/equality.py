"""Whether two readings are equal: lists by their order, intervals and inequalities as sets."""

from typing import Any

import sympy
from sympy import Eq, Interval, MatrixBase, S, Set
from sympy.core.relational import Relational

from .expressions import equal, proportional
from .reading import Items

_ORDERED = {"()", "[]", "(]", "[)", "ratio"}


def same(a: Any, b: Any) -> bool:
    """Return whether two readings are equal. There is no time limit."""
    if isinstance(a, Items) or isinstance(b, Items):
        return _same_items(_items(a), _items(b)) or _same_sets(a, b)
    if isinstance(a, Eq) and isinstance(b, Eq):
        return proportional(a.lhs - a.rhs, b.lhs - b.rhs)
    if isinstance(a, (Set, Relational)) or isinstance(b, (Set, Relational)):
        return _same_sets(a, b)
    return equal(a, b)


def _items(tree: Any) -> Items:
    if isinstance(tree, MatrixBase) and 1 in tree.shape:
        return Items("()", [*tree])
    return tree if isinstance(tree, Items) else Items("one", [tree])


def _same_items(a: Items, b: Items) -> bool:
    ordered = {a.kind, b.kind} & _ORDERED
    if len(a.items) != len(b.items) or len(ordered) > 1 or (ordered and "set" in (a.kind, b.kind)):
        return False
    if ordered:
        return all(map(same, a.items, b.items))
    if a.kind != b.kind and isinstance(
        a.items[0], (Set, Relational)
    ):  # "or" and "and"; {} and {{}}
        return False
    left = [*b.items]
    for item in a.items:
        found = [other for other in left if same(item, other)]
        if not found:
            return False
        left.remove(found[0])
    return True


def _same_sets(a: Any, b: Any) -> bool:
    unknowns = [_unknowns(each) for each in (a, b)]
    sets = [_real_set(each) for each in (a, b)]
    if None in sets or (all(unknowns) and unknowns[0] != unknowns[1]):  # x > 2 and y > 2
        return False
    return bool(sets[0] == sets[1] or (sets[0] ^ sets[1]).is_empty)


def _unknowns(tree: Any) -> set[Any]:
    return set().union(*(getattr(each, "free_symbols", ()) for each in _items(tree).items))


def _real_set(tree: Any) -> Any:
    """Return a tree as a set of real numbers; None if it is none."""
    match tree:
        case Items("()" | "[]" | "(]" | "[)" as kind, [low, high]) if (low < high) is S.true:
            return Interval(low, high, kind[0] == "(", kind[1] == ")")
        case Items("list" | "and" | "or" as kind, items):
            sets = [_real_set(item) for item in items if isinstance(item, Relational)]
            if None in sets or len(sets) < len(items):
                return None
            meet = sympy.Intersection(*sets)
            return (
                sympy.Union(*sets) if kind == "or" or (kind == "list" and meet.is_empty) else meet
            )
        case Set():
            return tree.doit()
        case Relational() if not isinstance(tree, Eq) and len(tree.free_symbols) == 1:
            return tree.as_set()
    return None
