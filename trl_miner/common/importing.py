"""Objects by import path: reward functions, rollout functions and advantage estimators of the
user's own."""

import difflib
import importlib
import os
import sys
from typing import Any


def import_object(setting: str, path: str) -> Any:
    """Import what a setting names, a dotted path, from an installed package or else from the
    current folder."""
    module_name, _, name = path.rpartition(".")
    # a script or notebook of the user's has it first
    if not {"", os.getcwd()}.intersection(sys.path):
        sys.path.append(os.getcwd())
    failure = f"{setting}: '{path}' could not be imported from {os.getcwd()}: "
    try:
        module = importlib.import_module(module_name)
        is_there = hasattr(module, name)  # a lazy module imports only now
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{failure}{error}. Check the path.") from error
    except (Exception, SystemExit) as error:  # in the module's own code
        # here: `current_folder_last` comes before all other imports
        from .errors import cause, place_of

        where = f"{error.filename}, line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ValueError(
            f"{failure}{cause(error)} in {where or place_of(error)}. It must be a module that can"
            " be imported."
        ) from error
    if not is_there:
        hint = did_you_mean(name, vars(module)) or " Check the path."
        place = getattr(module, "__file__", None) or "built in"
        raise ValueError(
            f"{failure}module {module_name!r} ({place}) has no attribute {name!r}.{hint}"
        )
    return getattr(module, name)


def current_folder_last() -> None:
    """Move the current folder, which `python -m` puts first, to the end: its json.py must not
    replace Python's."""
    here = os.getcwd()
    sys.path[:] = [*(entry for entry in sys.path if entry not in ("", here)), here]


def did_you_mean(name: str, known: Any) -> str:
    """Return a sentence that suggests the most similar of the known names, with a space before it;
    empty: none is."""
    names = {str(each).lstrip("-"): each for each in known}  # the dashes of options do not count
    close = difflib.get_close_matches(name.lstrip("-"), names, n=1)
    return f" Did you mean {names[close[0]]!r}?" if close else ""
