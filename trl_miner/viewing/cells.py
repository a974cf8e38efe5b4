"""Numbers of several runs as one cell of a table."""

import statistics
from collections.abc import Iterable

NOT_AVAILABLE = "n/a"


def spread_text(values: Iterable[float | None], form: str) -> str:
    """Return "mean ± sample standard deviation" of the known values."""
    known = [value for value in values if value is not None]
    if not known:
        return NOT_AVAILABLE
    mean = form.format(statistics.fmean(known))
    return mean if len(known) < 2 else f"{mean} ± {form.format(statistics.stdev(known))}"


def counted(count: int, thing: str) -> str:
    """Return "1 run" or "2 runs"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
