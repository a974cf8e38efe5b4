"""Settings: fields with limits, and values brought into their types by pydantic; errors say what to write."""

import types
import typing
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

NONE = type(None)


@dataclass(frozen=True)
class _Limits:
    """What the value of a setting must be, besides its type."""

    at_least: float | None = None  # inclusive, as the next
    at_most: float | None = None
    one_of: Collection[str] = ()
    hint: str = ""  # what an error adds; empty: the default
    or_none: bool = False

    def check(self, name: str, value: Any, default: Any) -> None:
        """Raise ValueError for a value out of range."""
        if value is None and self.or_none:
            return
        rule = ""
        if self.one_of:
            rule = "" if value in self.one_of else f"one of {', '.join(self.one_of)}"
        elif value is None:
            rule = "a number"
        elif self.at_least is not None and not value >= self.at_least:  # NaN is refused, too
            rule = f"at least {self.at_least:g}"
        elif self.at_most is not None and not value <= self.at_most:
            rule = f"at most {self.at_most:g}"
        if rule:
            rule += ", or None" if self.or_none else ""
            raise ValueError(f"{name} must be {rule}: got {value!r}. {self.hint or f'The default is {default}.'}")


class _Metadata(dict[str, Any]):
    """Help and limits of a field. transformers' parser gives a copy to argparse, which knows no limits."""

    def copy(self) -> dict[str, Any]:
        return {"help": self["help"]}


def setting(default: Any, help: str, *, or_none: bool = False, **limits: Any) -> Any:
    """Return a field with a default, its help, and limits for `check_limits`: at_least, at_most, one_of, hint."""
    found = _Limits(or_none=or_none or default is None, **limits) if limits else None
    return field(default=default, metadata=_Metadata(help=help, limits=found))


def check_limits(args: Any) -> None:
    """Raise ValueError for a field of `setting` that is out of its limits."""
    for one in fields(args):
        if limits := one.metadata.get("limits"):
            limits.check(one.name, getattr(args, one.name), one.default)


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def convert(name: str, value: Any, annotation: Any) -> Any:
    """Return the value of a setting in its type: YAML may have an int for a float, and reads 1e-3 as a text.

    Raises:
        ValueError: It is of another type, or none of the choices of a Literal.
    """
    adapter = _adapter(annotation)
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        failure = error
    if not isinstance(value, bool):  # a truth is never a number
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            failure = error
    rules = [found["msg"].removeprefix("Input should be ") for found in failure.errors()]
    rules += ["None"] * (NONE in alternatives(annotation))
    raise ValueError(f"{name} must be {' or '.join(dict.fromkeys(rules))}: got {value!r}.")


@lru_cache
def _numeric_types(config: type) -> dict[str, Any]:
    """Return the types of the settings of a configuration class that take numbers and truths alone."""
    hints = typing.get_type_hints(config)
    return {name: hint for name, hint in hints.items() if {*alternatives(hint)} <= {bool, int, float, NONE}}


def convert_fields(args: Any) -> None:
    """Bring numbers that were given as texts, as recipes may, into their type; raise ValueError for other types."""
    for name, hint in _numeric_types(type(args)).items():  # type: ignore[arg-type]
        value = getattr(args, name, None)
        if value is not None and (converted := convert(name, value, hint)) != value:
            setattr(args, name, converted)


@lru_cache(None)
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except Exception:  # an annotation of the user's that is no type
        return TypeAdapter(Any)
