"""Files that must be whole."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file that is whole or as it was before, whenever the process dies or the disk is full."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
