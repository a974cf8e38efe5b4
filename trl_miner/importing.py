"""Objects by import path: reward functions, rollout functions and advantage estimators of the user's own."""

import difflib
import importlib
import os
import sys
from typing import Any


def import_object(setting: str, path: str) -> Any:
    """Import what a setting names, a dotted path, from an installed package or from the current folder."""
    module_name, _, name = path.rpartition(".")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    failure = f"{setting}: '{path}' could not be imported from {os.getcwd()}: "
    try:
        module = importlib.import_module(module_name)
        is_there = hasattr(module, name)  # a lazy module imports only now
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{failure}{error}. Check the path.") from error
    if not is_there:
        hint = did_you_mean(name, vars(module)) or " Check the path."
        raise ValueError(f"{failure}module {module_name!r} has no attribute {name!r}.{hint}")
    return getattr(module, name)


def did_you_mean(name: str, known: Any) -> str:
    """Return a sentence that suggests the most similar of the known names, with a space before it; empty: none is."""
    close = difflib.get_close_matches(name, [*known], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
