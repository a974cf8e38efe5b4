"""The settings of a recipe, parsed as each process of the training parses them."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..config import MinerGRPOConfig
from ..recipe import PARSED_TYPES, as_parsed


def parse(settings: Any, processes: int) -> tuple[tuple[Any, ...], list[str]]:
    """Return the settings of `PARSED_TYPES`, as each of the launched processes makes them, and the warnings of that.

    Nothing looks at a GPU. Raises what the training raises.
    """
    trained: Any = MinerGRPOConfig
    if settings.asynchronous:
        from ..async_config import RecipeConfig as trained

    class PlannedConfig(trained):
        num_processes = world_size = property(lambda self: processes)

    given = vars(settings) | {"use_cpu": True, "tf32": None}
    kinds = [PlannedConfig if kind is MinerGRPOConfig else kind for kind in PARSED_TYPES]
    with listening() as notes:
        parsed = tuple(as_parsed(kind, given) for kind in kinds)
    return parsed, notes


def said(error: Exception) -> str:
    """Return what an exception says, in one line."""
    text = " ".join(str(error).split()) or "no reason"
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect the warnings of the settings meanwhile, and silence those of all libraries."""
    notes: list[str] = []
    listener, own = logging.Handler(), logging.getLogger("trl_miner")
    listener.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    others = [logging.getLogger(name) for name in ("trl", "transformers", "accelerate", "datasets", "peft")]
    levels, propagates = [other.level for other in others], own.propagate
    own.addHandler(listener)
    own.propagate = False
    for other in others:
        other.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield notes
    finally:
        own.removeHandler(listener)
        own.propagate = propagates
        for other, before in zip(others, levels, strict=True):
            other.setLevel(before)
