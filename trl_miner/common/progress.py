"""Show how far long work is, and what a command wrote; nothing of it after `be_quiet`."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_QUIET = "TRL_MINER_QUIET"  # in the environment, so that child processes are quiet, too


def be_quiet() -> None:
    """Show no progress and no closing lines in this process from now on, nor in its children."""
    os.environ[_QUIET] = "1"


def is_quiet() -> bool:
    """Return whether `--quiet` was given."""
    return _QUIET in os.environ


def track(items: Iterable[T], title: str, *, total: int | None = None) -> Iterator[T]:
    """Yield the items with a bar on stderr, if they take more than a second; off a terminal it is
    written every 30 seconds. `total`: how many they are, where they have no length."""
    from tqdm import tqdm

    seconds = 0.1 if sys.stderr.isatty() else 30.0
    yield from tqdm(items, title, total, delay=1, mininterval=seconds, disable=is_quiet())


def finish(written: Sequence[str | Path], commands: Sequence[str] = ()) -> None:
    """Print the closing lines of a command on stdout: the paths that it wrote, and what to do
    next."""
    if is_quiet():
        return
    for title, lines in (("Wrote", written), ("Next", commands)):
        if lines:
            print(title, *(f"  {line}" for line in lines), sep="\n", flush=True)
