"""Whether two results were sampled alike."""

from collections.abc import Mapping
from typing import Any

# Settings of a result folder in which two models may differ and still be sampled alike.
NOT_SAMPLING = {"model", "revision", "adapter", "tokenizer", "fingerprint", "dtype", "seed", "backend", "versions"}


def sampling_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Name the settings in which two `settings.json` differ, such as "temperature 0.7 and 1.0"; empty: alike."""
    return named_differences(
        {name: (first.get(name), second.get(name)) for name in sorted({*first, *second} - NOT_SAMPLING)}
    )


def named_differences(values: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Return "NAME FIRST and SECOND" for each pair that differs, long values cut."""
    return [
        f"{name} {_short(first)} and {_short(second)}" for name, (first, second) in values.items() if first != second
    ]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 48 else f"{text[:24]}…{text[-20:]}"  # both ends: paths and prompts differ at either
