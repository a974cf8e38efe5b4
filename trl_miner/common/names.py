"""Names that a user writes: the most similar known one, objects by import path, and settings."""

import difflib
import importlib
import os
import sys
from collections.abc import Iterable
from dataclasses import field
from typing import Any


def setting(default: Any, help: str) -> Any:
    """Return a dataclass field with a default and its help, which TRL's parser shows."""
    return field(default=default, metadata={"help": help})


def did_you_mean(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str:
    """Return " Did you mean 'NAME'?" with the most similar known name; empty: none is similar."""
    close = difflib.get_close_matches(name, [*known], n=1, cutoff=likeness)
    return f" Did you mean {close[0]!r}?" if close else ""


def import_object(setting: str, path: str) -> Any:
    """Import what a setting names, MODULE.NAME, from an installed package or the current folder.

    Raises:
        ValueError: There is no such module or name, or the module's own code fails.
    """
    module_name, _, name = path.rpartition(".")
    if "" not in sys.path:  # a notebook has the current folder first
        current_folder_last()
    fault = f"{setting}: {path!r} cannot be imported: "
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # SystemExit: in the module's own code
        raise ValueError(f"{fault}{type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        hint = did_you_mean(name, vars(module))
        raise ValueError(f"{fault}{module_name} has no {name!r}.{hint}")
    return getattr(module, name)


def current_folder_last() -> None:
    """Move the current folder, which `python -m` puts first, to the end of the import path: its
    json.py must not replace Python's."""
    here = os.getcwd()
    sys.path[:] = [*(entry for entry in sys.path if entry not in ("", here)), here]
