"""Numbers of several runs as one cell of a table."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..runs.history import RunHistory

NOT_AVAILABLE = "n/a"


def spread(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Return mean and sample standard deviation ("mean", "std", "runs") of the known values; None: none is known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = statistics.stdev(known) if len(known) > 1 else None
    return {"mean": statistics.fmean(known), "std": std, "runs": len(known)}


def show_spread(measured: Mapping[str, Any] | None, form: str) -> str:
    """Return "mean ± deviation" of what `spread` gave."""
    if measured is None:
        return NOT_AVAILABLE
    mean = form.format(measured["mean"])
    return mean if measured["std"] is None else f"{mean} ± {form.format(measured['std'])}"


def show_known(values: Sequence[float | None], form: str, none: str = NOT_AVAILABLE) -> str:
    """Return "mean ± deviation" of the known values, and of how many where it is not all: "20 ± 3 (2 of 3)"."""
    measured = spread(values)
    return none if measured is None else with_count(show_spread(measured, form), measured["runs"], len(values))


def with_count(cell: str, known: int, size: int) -> str:
    """Return a cell, and of how many of all it is where it is not all: "20 (1 of 2)"."""
    return cell if known == size else f"{cell} ({known} of {size})"


def known_values(run: RunHistory, key: str) -> list[float]:
    """Return the logged values of a metric that are numbers."""
    values = run.points(key)[:, 1]
    known: list[float] = values[values == values].tolist()  # NaN where it is no finite number
    return known


def first_and_last(values: Sequence[float], form: str) -> str:
    """Return "first → last"."""
    ends = [form.format(value) for value in (*values[:1], *values[1:][-1:])]
    return " → ".join(ends) or NOT_AVAILABLE


def as_number(setting: str | None, otherwise: float) -> float:
    """Return a recorded setting as a number, where it is one."""
    try:
        return float(setting or otherwise)
    except ValueError:
        return otherwise


def counted(number: int, thing: str) -> str:
    """Return "1 run" or "2 runs"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
