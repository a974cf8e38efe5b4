"""Does a recipe fit on a machine, and how long does it take? Arithmetic of bytes and FLOPs."""

from collections.abc import Sequence


def examine(words: Sequence[str], machine: str | None = None, price: float | None = None) -> str:
    """Return what a recipe needs, as text. `machine` is like 4x80GB (default: this one)."""
    raise NotImplementedError
