"""A setting: the values that it takes, and a sentence for a value that it does not take."""

import contextlib
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from numbers import Integral, Real
from typing import Any

from .importing import did_you_mean

_WORDS = {
    **{"int": "a whole number", "float": "a number", "str": "a text", "list": "a list"},
    **{"dict": "a mapping", "none": "None"},
}
_TRUTHS = {"true", "false", "t", "f", "yes", "no", "y", "n", "1", "0"}  # as transformers reads them


def kinds_of(annotation: Any) -> tuple[str, ...]:
    """Return the kinds of values that an annotation allows: bool, int, float, str, list, dict, none, any."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return tuple(dict.fromkeys(kind for one in args for kind in kinds_of(one)))
    if origin is typing.Literal:
        return tuple(dict.fromkeys(type(value).__name__ for value in args))
    kind = origin or annotation
    if kind is type(None):
        return ("none",)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ("str",)
    return (kind.__name__ if kind in (bool, int, float, str, list, dict) else "any",)


@dataclass(frozen=True)
class Setting:
    """A setting of a training.

    Attributes:
        name: As in a recipe.
        kinds: Of values, as `kinds_of` names them.
        choices: The valid values; empty: any.
        default: As text; empty: None.
        help: What it is.
        group: What it has in common with its neighbours in the help; empty: it is not ours.
        flags: Its options on a command line.
        nargs: How many values follow them, as argparse has it.
    """

    name: str
    kinds: tuple[str, ...] = ("any",)
    choices: tuple[Any, ...] = ()
    default: str = ""
    help: str = ""
    group: str = ""
    flags: tuple[str, ...] = ()
    nargs: str | int | None = None

    def convert(self, value: Any) -> Any:
        """Return a value in the setting's type: YAML may have an int for a float, and reads 1e-3 as a text.

        Raises:
            ValueError: It is of another type, or none of the choices.
        """
        if self.choices:
            if value is None and "none" in self.kinds or value in self.choices:
                return value
            quotes = ' YAML reads no as false: write "no".' if isinstance(value, bool) else ""
            hint = did_you_mean(str(value), map(str, self.choices)) or quotes or self.hint()
            raise ValueError(f"{self.name} must be one of {', '.join(map(str, self.choices))}: got {value!r}.{hint}")
        kind = _kind(value)
        if kind == "str" and "dict" in self.kinds and value.startswith("{"):
            self._check_json(value)
        if "any" in self.kinds or kind in self.kinds:
            return value
        if kind in ("int", "str") and "float" in self.kinds:
            with contextlib.suppress(ValueError):
                return float(value)
        if kind == "str" and "int" in self.kinds:
            with contextlib.suppress(ValueError):
                return int(value)
        if kind in ("int", "str") and "bool" in self.kinds and str(value).lower() in _TRUTHS:
            return str(value).lower() in ("true", "t", "yes", "y", "1")
        raise ValueError(f"{self.name} must be {self._rule()}: got {value!r}.{self.hint(value)}")

    def _check_json(self, text: str) -> None:
        try:
            json.loads(text)
        except ValueError as error:
            raise ValueError(
                f"{self.name} must be a mapping in JSON: got {text!r} ({error}). Write '{{\"key\": value}}'."
            ) from error

    def _rule(self) -> str:
        kinds = [kind for kind in self.kinds if not (kind == "int" and "float" in self.kinds)]
        names = ["true", "false", *kinds] if "bool" in kinds else kinds
        names = [_WORDS.get(name, name) for name in names if name != "bool"]
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"

    def hint(self, value: Any = None) -> str:
        """Return a sentence on what to write instead of a value, with a space before it; empty: there is none."""
        if "list" in self.kinds and isinstance(value, str):
            return f" Write [{value}]."
        if "str" in self.kinds and isinstance(value, int | float):
            return f' Write "{value}".'
        return f" The default is {self.default}." if self.default else ""


def _kind(value: Any) -> str:
    kinds: dict[str, Any] = {
        "none": type(None),
        "bool": bool,
        "int": Integral,
        "float": Real,
        "str": str,
        "dict": Mapping,
    }
    kinds["list"] = list | tuple
    return next((name for name, kind in kinds.items() if isinstance(value, kind)), type(value).__name__)


def check_settings(values: Mapping[str, Any], known: Mapping[str, Setting], path: Any) -> None:
    """Raise ValueError for a key of a recipe that is no setting, or that has a value of the wrong type."""
    for key, value in values.items():
        if key == "env":
            if not isinstance(value, dict):
                raise ValueError(f"{path}: env must be a mapping of variables: got {value!r}. Write env: {{NAME: x}}.")
        elif key not in known:
            hint = did_you_mean(str(key), known) or " Settings of accelerate go on the command line."
            raise ValueError(f"{path}: unknown key '{key}'.{hint}")
        elif value is not None or known[key].default:
            try:
                known[key].convert(value)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
