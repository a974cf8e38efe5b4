"""Trees of `parsing.py` as short text."""

from fractions import Fraction

from .parsing import Node


def show(node: Node) -> str:
    """Return a tree as short text."""
    kind, *parts = node
    if kind == "matrix":
        return "[" + ", ".join(show(("sequence", "[", "]", *row)) for row in parts) + "]"
    if kind == "number":
        value: Fraction = parts[0]
        return str(value) if parts[1] is None else f"{float(value):.{min(parts[1], 15)}f}"
    if kind in ("symbol", "constant", "numbers", "opaque"):
        return str(parts[0]).removeprefix("\\")
    if kind in ("set", "list", "or", "and"):
        return "{" + ", ".join(map(show, parts)) + "}"
    if kind == "sequence":
        return parts[0] + ", ".join(map(show, parts[2:])) + parts[1]
    if kind == "ratio":
        return ":".join(map(show, parts))
    if kind == "negative":
        return "-" + _inner(parts[0])
    if kind == "add" and parts[1][0] == "negative":
        return f"{show(parts[0])} - {_inner(parts[1][1])}"
    if kind in ("add", "times", "over", "power"):
        sign = {"add": " + ", "times": "*", "over": "/", "power": "^"}[kind]
        return (
            (show if kind == "add" else _inner)(parts[0])
            + sign
            + (show if kind == "add" else _inner)(parts[1])
        )
    if kind == "relation":
        sides = [show(side) for side in parts[0]]
        return sides[0] + "".join(
            f" {sign} {side}" for sign, side in zip(parts[1], sides[1:], strict=True)
        )
    if kind == "quantity":
        return show(parts[0])
    if kind == "percent":
        return show(parts[0]) + "%"
    if kind == "plus-minus":
        is_single = parts[0] == ("number", Fraction(0), None)
        return ("" if is_single else show(parts[0]) + " ") + "± " + show(parts[1])
    if kind == "call" and parts[0] == "root" and parts[2] == ("number", Fraction(2), None):
        return f"sqrt({show(parts[1])})"
    name, *arguments = parts or ("",)
    shown = ", ".join(
        show(part) if isinstance(part, tuple) and part else str(part) for part in arguments
    )
    return f"{name}({shown})" if isinstance(name, str) else kind


def _inner(node: Node) -> str:
    return (
        f"({show(node)})"
        if node[0] in ("add", "negative", "over", "times", "plus-minus")
        else show(node)
    )
