"""Files that must be whole."""

import os
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, content: str | Iterable[bytes]) -> None:
    """Write a file that is whole or as it was before, whenever the process dies or the disk is full.

    Args:
        path: The file.
        content: A text, or pieces that are too much to hold at once.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.writelines([content.encode("utf-8")] if isinstance(content, str) else content)
    os.replace(temporary, path)
