"""Numbers of several runs as one cell of a table."""

import statistics
from collections.abc import Sequence
from typing import Any

from ..runs.history import number

NOT_AVAILABLE = "n/a"


def spread(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Return mean and sample standard deviation ("mean", "std", "runs") of the known values; None: none is known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = statistics.stdev(known) if len(known) > 1 else None
    return {"mean": statistics.fmean(known), "std": std, "runs": len(known)}


def show_spread(measured: dict[str, Any] | None, form: str) -> str:
    """Return "mean ± deviation" of what `spread` gave."""
    if measured is None:
        return NOT_AVAILABLE
    mean = form.format(measured["mean"])
    return mean if measured["std"] is None else f"{mean} ± {form.format(measured['std'])}"


def with_count(cell: str, known: int, size: int) -> str:
    """Return a cell, and of how many of all it is where it is not all: "20 (1 of 2)"."""
    return cell if known == size else f"{cell} ({known} of {size})"


def as_number(setting: str | None, otherwise: float) -> float:
    """Return a recorded setting as a number, where it is one."""
    try:
        known = number(float(setting or otherwise))
    except ValueError:
        known = None
    return otherwise if known is None else known


def counted(count: int, thing: str) -> str:
    """Return "1 run" or "2 runs"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
