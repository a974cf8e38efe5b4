"""Trees of `parsing.py` as short text."""

from typing import Any

from .parsing import Node, number

_SIGNS = {"times": "*", "over": "/", "power": "^"}


def show(node: Node) -> str:
    """Return a tree as short text."""
    match node:
        case ("number", value, None):
            return str(value)
        case ("number", value, decimals):
            return f"{float(value):.{min(decimals, 15)}f}"
        case ("symbol" | "constant" | "numbers" | "opaque", name):
            return str(name).removeprefix("\\")
        case ("set" | "list" | "or" | "and", *items):
            return "{" + _listed(items) + "}"
        case ("sequence", opening, closing, *items):
            return opening + _listed(items) + closing
        case ("matrix", *rows):
            return "[" + ", ".join(f"[{_listed(row)}]" for row in rows) + "]"
        case ("ratio", *terms):
            return ":".join(map(show, terms))
        case ("negative", inner):
            return "-" + _inner(inner)
        case ("add", first, ("negative", second)):
            return f"{show(first)} - {_inner(second)}"
        case ("add", first, second):
            return f"{show(first)} + {show(second)}"
        case ("times" | "over" | "power" as kind, first, second):
            return _inner(first) + _SIGNS[kind] + _inner(second)
        case ("relation", (first, *others), signs):
            pairs = zip(signs, others, strict=True)
            return show(first) + "".join(f" {sign} {show(side)}" for sign, side in pairs)
        case ("quantity", inner, _):
            return show(inner)
        case ("percent", inner):
            return show(inner) + "%"
        case ("plus-minus", first, second, _):
            return f"{'' if first == number(0) else show(first)} ± {show(second)}".strip()
        case ("call", "root", inner, degree) if degree == number(2):
            return f"sqrt({show(inner)})"
        case (_, str() as name, *arguments):
            return f"{name}({_listed(arguments)})"
    return str(node[0])


def _listed(parts: Any) -> str:
    return ", ".join(
        show(part) if isinstance(part, tuple) and part else str(part) for part in parts
    )


def _inner(node: Node) -> str:
    is_compound = node[0] in ("add", "negative", "over", "times", "plus-minus")
    return f"({show(node)})" if is_compound else show(node)
