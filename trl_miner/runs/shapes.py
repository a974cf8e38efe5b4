"""What a JSON file must hold: a shape is a `Kind` of value, `Each(shape)`, `Maybe(shape)`, or an object's fields.

{"samples": POSITIVE, "level": Maybe(TEXT), "scores": Each(SHARE), "options": Each(TEXT, list)}

Fields that a shape does not name are left alone.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")  # half a letter, which cannot be written
_ROUNDING = 1e-9  # the mean of shares may be a little above 1
LARGEST = 2**63  # of whole numbers, as in Parquet and numpy


@dataclass(frozen=True)
class Kind:
    """A kind of value: its name in a sentence, and whether a value is of that kind."""

    name: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Each:
    """An object, or a list, of which each value has the same shape."""

    shape: "Shape"
    container: type[dict[Any, Any]] | type[list[Any]] = dict


@dataclass(frozen=True)
class Maybe:
    """A value that has a shape, is null, or is missing."""

    shape: "Shape"


Shape = Kind | Each | Maybe | Mapping[str, Any]


def number(value: Any) -> float | None:
    """Return a finite number as a float; None for anything else that JSON may hold, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # JSON's whole numbers have no largest one
        return None


def _is_finite(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def _or_negative(value: Any) -> float:
    return -1.0 if (known := number(value)) is None else known


def _is_whole(value: Any, at_least: int) -> bool:
    return type(value) is int and at_least <= value < LARGEST


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not _SURROGATE.search(value)


TEXT = Kind("a text", _is_text)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
COUNT = Kind("a whole number, at least 0", lambda value: _is_whole(value, 0))
POSITIVE = Kind("a whole number, at least 1", lambda value: _is_whole(value, 1))
NUMBER = Kind("a finite number", lambda value: number(value) is not None)
NOT_NEGATIVE = Kind("a finite number, at least 0", lambda value: _or_negative(value) >= 0)
MORE_THAN_0 = Kind("a finite number above 0", lambda value: _or_negative(value) > 0)
SHARE = Kind("a number from 0 to 1", lambda value: 0 <= _or_negative(value) <= 1 + _ROUNDING)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
LIST = Kind("a list", lambda value: isinstance(value, list))
FINITE = Kind("without NaN and Infinity", lambda value: _is_finite(value))
SCALAR = Kind("a text or a number", lambda value: _is_text(value) or number(value) is not None)


def one_of(*values: str) -> Kind:
    """Return the kind of one of some texts."""
    return Kind(" or ".join(map(repr, values)), lambda value: isinstance(value, str) and value in values)


def misfit(value: Any, shape: Shape, place: str = "it") -> str | None:
    """Return what is wrong with a value, such as "samples must be a whole number, at least 0: got -1", or None."""
    if isinstance(shape, Kind):
        return None if shape.holds(value) else f"{place} must be {shape.name}: got {_short(value)}"
    if isinstance(shape, Maybe):
        return None if value is None else misfit(value, shape.shape, place)
    container = shape.container if isinstance(shape, Each) else dict
    if not isinstance(value, container):
        return f"{place} must be {'a list' if container is list else 'an object'}: got {_short(value)}"
    values: Mapping[Any, Any] = value if isinstance(value, dict) else dict(enumerate(value))
    shapes = dict.fromkeys(values, shape.shape) if isinstance(shape, Each) else shape
    for name, inner in shapes.items():
        if name not in values and not isinstance(inner, Maybe):
            return f"{_inside(place, name)} is missing"
        if problem := misfit(values.get(name), inner, _inside(place, name)):
            return problem
    return None


def _inside(place: str, name: Any) -> str:
    return str(name) if place == "it" else f"{place}.{name}"


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and not _is_whole(value, -LARGEST):
        return "a larger number than 64 bits hold"
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
