"""Settings: fields with limits, and values brought into their types by pydantic; errors say what to
write."""

import types
import typing
from collections.abc import Collection
from dataclasses import field, fields
from functools import lru_cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from .importing import did_you_mean

NONE = type(None)


class _Metadata(dict[str, Any]):
    """Help and limits of a field. transformers' parser gives a copy to argparse, which knows no
    limits."""

    def copy(self) -> dict[str, Any]:
        return {"help": self["help"]}


def setting(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    one_of: Collection[str] = (),
    or_none: bool = False,
) -> Any:
    """Return a field with a default, its help, and limits for `check_limits`; None is a value where
    it is the default, or with `or_none`."""
    limits = at_least, one_of, or_none or default is None
    return field(default=default, metadata=_Metadata(help=help, limits=limits))


def check_limits(args: Any) -> None:
    """Raise ValueError for a field of `setting` that is out of its limits, and for any that is no
    number in the place of one."""
    for each in fields(args):
        value, (at_least, one_of, or_none) = (
            getattr(args, each.name),
            each.metadata.get("limits", (None, (), True)),
        )
        if one_of:
            rule = f"one of {', '.join(one_of)}"
        elif at_least is not None:
            rule = f"at least {at_least:g}"
        else:
            rule = "a number" if value != value else ""
        if not rule or (value is None and or_none):
            continue
        # NaN is refused, too
        if value not in one_of if one_of else value is None or not value >= (at_least or 0):
            raise ValueError(out_of_limits(each.name, value, rule, each.default, or_none=or_none))


def out_of_limits(name: str, value: Any, rule: str, default: Any, *, or_none: bool = False) -> str:
    """Return an error message for a value that breaks a rule, such as "at least 0" or "one of a,
    b"."""
    choices = rule.removeprefix("one of ").split(", ") if rule.startswith("one of ") else ()
    hint = did_you_mean(str(value), choices)
    rule += ", or None" * or_none
    return f"{name} is {value!r}.{hint} It must be {rule}; the default is {default}."


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def convert(name: str, value: Any, annotation: Any) -> Any:
    """Return the value of a setting in its type: YAML may have an int for a float, and reads 1e-3
    as a text.

    Raises:
        ValueError: It is of another type, or none of the choices of a Literal.
    """
    adapter = _adapter(annotation)
    # a truth is never a number
    for is_strict in (True,) if isinstance(value, bool) else (True, False):
        try:
            return adapter.validate_python(value, strict=is_strict)
        except ValidationError as error:
            failure = error
    rules = [detail["msg"].removeprefix("Input should be ") for detail in failure.errors()]
    rules += ["None"] * (NONE in alternatives(annotation))
    raise ValueError(f"{name} is {value!r}. It must be {' or '.join(dict.fromkeys(rules))}.")


@lru_cache
def _numeric_types(config: type) -> dict[str, Any]:
    """Return the types of the settings of a configuration class that take numbers and truths
    alone."""
    hints = typing.get_type_hints(config)
    return {
        name: hint
        for name, hint in hints.items()
        if {*alternatives(hint)} <= {bool, int, float, NONE}
    }


def convert_fields(args: Any) -> None:
    """Bring numbers that were given as texts, as recipes may, into their type; raise ValueError for
    other types."""
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
