"""`evaluation.json` of a run folder: scores on held-out problems by moment.

{"before": {"pass@1": 0.5, "pass@8": 0.75}, "step 50": {...}, "after": {...}}

`best/` holds one, too, with the moment of the model that is kept there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from .files import read_optional, write_json
from .records import ByMoment, number

FILE = "evaluation.json"
BEFORE, AFTER = "before", "after"
T = TypeVar("T")
_RECORD = TypeAdapter(ByMoment)


def write_evaluation(folder: Path, scores: Mapping[str, Mapping[str, float]]) -> None:
    """Write `evaluation.json`: scores in [0, 1] by moment and metric."""
    write_json(folder / FILE, scores)


def read_evaluation(folder: Path, notes: list[str] | None = None) -> dict[str, Any]:
    """Read the scores by moment, if any; a damaged file is an error, or a sentence in `notes`."""
    return read_optional(folder / FILE, notes, _RECORD)


def step_of(moment: str, last: int | None = None) -> int | None:
    """Return the optimizer step of "before", "step 50", or "after", which is `last`."""
    step = moment.removeprefix("step ")
    return {BEFORE: 0, AFTER: last}.get(moment, int(step) if step.isdecimal() else None)


def until(step: int, by_moment: Mapping[str, T]) -> dict[str, T]:
    """Return the moments up to an optimizer step, without "after"."""
    return {moment: value for moment, value in by_moment.items() if (at := step_of(moment)) is not None and at <= step}


def clean_scores(scores: Mapping[str, Any], last: int) -> dict[float, dict[str, float]]:
    """Return the finite scores by optimizer step, in order; `last` is the step of "after"."""
    known: dict[float, dict[str, float]] = {}
    for moment, metrics in scores.items():
        if (step := step_of(moment, last)) is not None and isinstance(metrics, dict):
            known[float(step)] = {name: value for name, raw in metrics.items() if (value := number(raw)) is not None}
    return dict(sorted(known.items()))
