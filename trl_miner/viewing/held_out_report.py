"""The part of a report that is on the held-out problems, one by one: its tables, and what is to be drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..tables import Table
from . import lines
from .grouping import Method
from .held_out_curves import AGAINST, BY_K, draw_against, draw_by_k, highlighted
from .held_out_tables import Scored, against_tables, families, pass_tables, scored_alike

PICTURES = (BY_K, AGAINST)


@dataclass(frozen=True)
class Plan:
    """A picture that is to be drawn.

    Attributes:
        name: Of its files.
        title: What it shows.
        caption: How to read it.
        draw: Gives the figure.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[], Any]


def held_out_part(methods: Sequence[Method]) -> tuple[list[Table], list[Plan]]:
    """Tables and pictures of the runs that recorded how many samples of each held-out problem were right.

    Args:
        methods: Of the report.

    Returns:
        Both empty where no run recorded it.
    """
    scored = scored_alike(methods)
    if scored is None:
        return [], []
    against = against_tables(scored)
    plans = [_by_k(scored)] if scored.largest_k > 1 else []
    plans += [_against(scored)] if against else []
    return [*against, *pass_tables(scored)], plans


def _by_k(scored: Scored) -> Plan:
    caption = [
        "After training: the share of problems that at least one of K samples solves, the unbiased estimate from all "
        "samples. Logarithmic axis, base 2."
    ]
    if any(len(own) > 1 for own in scored.runs.values()):
        caption.append("Line: mean over the runs of a method. Band: from the smallest to the largest of them.")
    chosen = highlighted(scored)
    if len(chosen) < len(scored.runs):
        caption.append(
            f"Above {lines.MOST_BANDS} methods only {' and '.join(chosen)} stand out; the table of Pass@K has all."
        )
    return Plan(BY_K, "Pass@K on held-out problems, after training", " ".join(caption), lambda: draw_by_k(scored))


def _against(scored: Scored) -> Plan:
    reference = next(iter(families(scored)))
    caption = (
        f"Pass@K of each method minus that of {reference}, in percentage points, with its 95 % interval over seeds "
        "and problems. Filled: p below 0.05 after Holm's adjustment for the methods of the panel. Without a bar: no "
        "run differs at any problem."
    )
    return Plan(AGAINST, f"Differences from {reference}", caption, lambda: draw_against(scored))
