"""The numbers of training runs as one tidy frame, of which charts and tables are made.

A row is the value of a metric of a run at a step:

    metric  a key of the log; "eval:pass@1", a score on held-out problems; or one of `_DERIVED`
    method  the label of the method
    run     the name of the run, unique among those given
    seed    the seed, NaN where it was not recorded
    step    generation batches, where every run says how many optimizer steps one has; else optimizer steps; or K
    value   NaN is a gap
"""

import functools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runs.dose import dose_of
from ..runs.history import RunHistory
from .cells import NOT_AVAILABLE

if TYPE_CHECKING:
    from pandas import DataFrame

    from .grouping import Method

BATCHES, STEPS, SAMPLES = "step (generation batches)", "step (of the optimizer)", "K (samples of each problem)"
COLUMNS = ("metric", "method", "run", "seed", "step", "value")


@dataclass(frozen=True)
class Metrics:
    """Metrics of some methods, whose runs have names that differ.

    Attributes:
        methods: The methods.
        rows: The tidy frame.
        axis: What its steps are: `BATCHES`, `STEPS`, or `SAMPLES` where scores are by K.
    """

    methods: Sequence["Method"]
    rows: "DataFrame"
    axis: str

    def divisor(self, run: RunHistory) -> float:
        """Return the optimizer steps of a step of the frame."""
        return run.per_step if self.axis == BATCHES and run.per_step else 1.0

    @functools.cached_property
    def summary(self) -> dict[tuple[str, str], dict[str, float]]:
        """By metric and run the number of known values, the first, last, mean, median, smallest and largest one."""
        values = self.rows.groupby(["metric", "run"], observed=True, sort=False)["value"]
        table = values.agg(["count", "first", "last", "mean", "median", "min", "max"]).dropna()
        return table.to_dict("index")

    def has(self, metric: str, run: RunHistory) -> bool:
        """Return whether a run has a known value of a metric."""
        return (metric, run.name) in self.summary

    def occurs(self, metric: str) -> bool:
        """Return whether a metric is a number other than 0 somewhere."""
        return any(one["min"] or one["max"] for (name, _), one in self.summary.items() if name == metric)

    def of(self, runs: Sequence[RunHistory], metric: str, what: str = "mean") -> list[float]:
        """Return a column of `summary` for those of some runs that have the metric."""
        return [self.summary[metric, run.name][what] for run in runs if self.has(metric, run)]

    def cell(self, runs: Sequence[RunHistory], metric: str, form: str, *whats: str) -> str:
        """Return the means over the runs of columns of `summary`, such as "first → last"; one for a single value."""
        if self.of(runs, metric, "count") and max(self.of(runs, metric, "count")) == 1:
            whats = whats[-1:]
        known = [own for what in whats if (own := self.of(runs, metric, what))]
        return " → ".join(form.format(statistics.fmean(own)) for own in known) or NOT_AVAILABLE


def read_metrics(methods: Sequence["Method"], metrics: Iterable[str]) -> Metrics:
    """Return metrics of runs by their keys; for keys that are none of the log see this module's description."""
    every = [(method.label, run) for method in methods for run in method.runs]
    are_batches = bool(every) and all(run.per_step for _, run in every)
    empty = Metrics(methods, as_rows([], []), BATCHES if are_batches else STEPS)
    keys, points = [], []
    for metric in dict.fromkeys(metrics):
        for label, run in every:
            keys.append((metric, label, run.name, run.seed))
            points.append(_points(run, metric) / [empty.divisor(run), 1.0])
    return replace(empty, rows=as_rows(keys, points))


def as_rows(
    keys: Sequence[tuple[str, str, str, int | None]], points: Sequence[Any], columns: Sequence[str] = COLUMNS[4:]
) -> "DataFrame":
    """Return the tidy frame of (n, C) points with these columns; `keys`: metric, method, run and seed of each."""
    import pandas as pd

    table = pd.DataFrame(keys, columns=list(COLUMNS[:4])).astype({"seed": float})
    table = table.astype(dict.fromkeys(COLUMNS[:3], "category"))
    rows = table.take(np.repeat(np.arange(len(keys)), [len(own) for own in points])).reset_index(drop=True)
    for name, values in zip(columns, np.concatenate([np.empty((0, len(columns))), *points]).T, strict=True):
        rows[name] = values
    return rows


def _points(run: RunHistory, metric: str) -> np.ndarray:
    """Return (n, 2) optimizer steps, ascending, and values of a metric."""
    if metric in _DERIVED:
        return np.array(_DERIVED[metric](run), dtype=float).reshape(-1, 2)
    if metric.startswith("eval:"):
        name = metric.removeprefix("eval:")
        scored = [(step, scores[name]) for step, scores in sorted(run.scores.items()) if name in scores]
        return np.array(scored, dtype=float).reshape(-1, 2)
    return run.points(metric)


def _overhead(run: RunHistory) -> np.ndarray:
    """Return the share of a step's time that MINER's advantages took."""
    points = _ratio(run, "miner/seconds", "step_time")  # of a generation batch, and of an optimizer step
    return points / [1.0, run.per_step or 1.0]


def _l1_share(run: RunHistory) -> Any:
    dose = dose_of(run)
    return dose.reached if dose.unit in ("cap", "none") else []


def _ratio(run: RunHistory, above: str, below: str) -> np.ndarray:
    """Return the ratio of two metrics where the lower is logged and not 0."""
    numerators, divisors = run.points(above), run.points(below)
    divisors = divisors[np.nan_to_num(divisors[:, 1]) != 0]
    steps, at, to = np.intersect1d(numerators[:, 0], divisors[:, 0], return_indices=True)
    return np.stack([steps, numerators[at, 1] / divisors[to, 1]], axis=1)


_DERIVED = {
    "overhead": _overhead,
    "l1_share": _l1_share,  # of all-right prompts, against mixed ones
    "tau_ratio": lambda run: _ratio(run, "miner/tau_pos", "miner/tau_ref"),  # before the cap
    "used_share": lambda run: _ratio(run, "rollouts/used_total", "rollouts/generated_total"),
}
