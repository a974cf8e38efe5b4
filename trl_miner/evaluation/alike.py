"""Whether two results were sampled alike."""

from collections.abc import Mapping
from typing import Any

# Settings of a result folder in which two models may differ and still be sampled alike.
_NOT_SAMPLING = {"model", "revision", "adapter", "fingerprint", "dtype", "seed", "backend", "versions"}


def sampling_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Name the settings in which two results differ, such as "temperature 0.7 and 1.0"; empty: alike."""
    names = sorted({*first, *second} - _NOT_SAMPLING)
    pairs = [(name, first.get(name), second.get(name)) for name in names]
    return [f"{name} {_short(one)} and {_short(other)}" for name, one, other in pairs if one != other]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 48 else f"{text[:24]}…{text[-20:]}"  # both ends: paths and prompts differ at either
