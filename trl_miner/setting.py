"""Values of settings, brought into their types by pydantic, with errors that say what to write."""

import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from .importing import did_you_mean

NONE = type(None)


@dataclass(frozen=True)
class Setting:
    """A setting by name, with its annotation, its default, and its valid values where these are few."""

    name: str
    type: Any = Any
    default: Any = None
    choices: Collection[Any] = ()

    def convert(self, value: Any) -> Any:
        """Return a value in the setting's type: YAML may have an int for a float, and reads 1e-3 as a text.

        Raises:
            ValueError: It is of another type, or none of the choices.
        """
        is_optional = NONE in alternatives(self.type)
        if self.choices and not (value is None and is_optional):
            if value in self.choices:
                return value
            rule = f"one of {', '.join(map(str, self.choices))}"
            raise ValueError(f"{self.name} must be {rule}: got {value!r}.{self._hint(value)}")
        try:
            return _in_type(value, self.type)
        except ValidationError as error:
            rules = dict.fromkeys(_rule(found["msg"]) for found in error.errors())
            rule = " or ".join([*rules, *["None"] * is_optional])
            raise ValueError(f"{self.name} must be {rule}: got {value!r}.{self._hint(value)}") from error

    def _hint(self, value: Any) -> str:
        """Return a sentence on what to write instead of a value, with a space before it; empty: there is none."""
        if self.choices and isinstance(value, bool):
            return ' YAML reads no as false: write "no".'
        hint = did_you_mean(str(value), map(str, self.choices))
        return hint or ("" if self.default is None else f" The default is {self.default}.")


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def check_settings(values: Mapping[str, Any], known: Mapping[str, Setting], path: Any) -> None:
    """Raise ValueError for a key of a recipe that is no setting, or that has a value of the wrong type."""
    for key, value in values.items():
        if key not in known:
            hint = did_you_mean(str(key), known) or " Settings of accelerate go on the command line."
            raise ValueError(f"{path}: unknown key '{key}'.{hint}")
        if value is not None or known[key].default is not None:
            try:
                known[key].convert(value)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error


@lru_cache
def _numeric_settings(config: type) -> tuple[Setting, ...]:
    """Return the settings of a configuration class that take numbers and truths alone."""
    hints = typing.get_type_hints(config)
    found = [
        Setting(field.name, hints[field.name], None if field.default is MISSING else field.default)
        for field in fields(config)
    ]
    return tuple(setting for setting in found if {*alternatives(setting.type)} <= {bool, int, float, NONE})


def convert_fields(args: Any) -> None:
    """Bring numbers that were given as texts, as recipes may, into their type; raise ValueError for other types."""
    for setting in _numeric_settings(type(args)):  # type: ignore[arg-type]
        value = getattr(args, setting.name, None)
        if value is not None and (converted := setting.convert(value)) != value:
            setattr(args, setting.name, converted)


def _in_type(value: Any, annotation: Any) -> Any:
    """Return a value in the type of an annotation; a truth is never a number."""
    adapter = _adapter(annotation)
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError:
        if isinstance(value, bool):
            raise
        return adapter.validate_python(value)


@lru_cache(None)
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except Exception:  # an annotation of the user's that is no type
        return TypeAdapter(Any)


def _rule(message: str) -> str:
    """Return pydantic's "Input should be a valid number, unable to parse ..." as "a number"."""
    rule = message.removeprefix("Input should be ").partition(",")[0].replace("valid ", "")
    for theirs, ours in (("integer", "whole number"), ("string", "text"), ("dictionary", "mapping")):
        rule = rule.replace(theirs, ours)
    return rule
