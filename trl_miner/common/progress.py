"""Show how far long work is, and what a command wrote; nothing of it after `be_quiet`."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def be_quiet() -> None:
    """Show no progress and no closing lines in this process from now on."""


def is_quiet() -> bool:
    """Return whether `--quiet` was given."""
    return False


def track(items: Iterable[T], title: str, *, total: int | None = None) -> Iterator[T]:
    """Yield the items with a bar on stderr; off a terminal a line every 30 seconds."""
    yield from items


def finish(written: Sequence[str | Path], commands: Sequence[str] = ()) -> None:
    """Print the closing lines of a command: the paths that it wrote, and what to do next."""
