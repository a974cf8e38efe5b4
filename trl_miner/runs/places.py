"""A folder may come from a stranger: nothing outside it is published, and nothing is read that never ends.

A link in it may lead anywhere; a pipe or a device would hang whoever reads it.
"""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

LARGEST = 2**30  # bytes of a file of ours that is read at once
_FOLDERS: ContextVar[tuple[str, ...]] = ContextVar("_FOLDERS", default=())


@contextlib.contextmanager
def only_within(folder: str | Path) -> Iterator[None]:
    """Refuse to read files of ours outside a folder within the block. The folder itself may be a link."""
    token = _FOLDERS.set((*_FOLDERS.get(), os.path.realpath(folder)))
    try:
        yield
    finally:
        _FOLDERS.reset(token)


def fault(path: Path, *, largest: int | None = None) -> str:
    """Return why a file must not be read, as the end of a sentence; empty: it may be.

    It must be an ordinary file, inside the folders of `only_within` around the call, and of at most `largest` bytes.
    """
    real = os.path.realpath(path)
    outside = next((own for own in _FOLDERS.get() if not Path(real).is_relative_to(own)), None)
    if outside is not None:
        return f"it leads out of {outside}, to {real}"
    if not os.path.isfile(real):
        return "it is a link that leads to no file" if path.is_symlink() else "it is no ordinary file"
    if largest is not None and (size := os.path.getsize(real)) > largest:
        return f"it has {size} bytes, and may have {largest}"
    return ""


def check_target(target: Path, folder: Path) -> None:
    """Raise OSError unless what is written into `target`, which need not exist, stays inside `folder`."""
    real, own = os.path.realpath(target), os.path.realpath(folder)
    if not Path(real).is_relative_to(own):
        raise OSError(f"{target} must lie in {folder}: it leads to {real}. Remove the link, or write elsewhere.")


def no_link(path: str, flags: int) -> int:
    """Open a file to write, but not where a link leads: an `opener` of `open`."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
