"""The numbers of training runs as one tidy frame, of which charts and tables are made.

A row is the value of a metric of a run at a step:

    metric  a key of the log; "eval:pass@1", a score on held-out problems; "overhead"; or "l1_share"
    method  the label of the method
    run     the name of the run, unique among those given
    seed    the seed, NaN where it was not recorded
    step    generation batches, where every run says how many optimizer steps one has; else optimizer steps; or K
    value   NaN is a gap
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..runs.dose import l1_shares
from ..runs.history import RunHistory
from .charts import Chart
from .inputs import NOT_AVAILABLE, Method

if TYPE_CHECKING:
    from pandas import DataFrame

BATCHES, STEPS, SAMPLES = "step (generation batches)", "step (of the optimizer)", "K (samples of each problem)"
_KEYS = ("metric", "method", "run", "seed")


@dataclass(frozen=True)
class Metrics:
    """Metrics of some methods, whose runs have names that differ, as tidy rows. `axis` says what their steps are:
    `BATCHES`, `STEPS`, or `SAMPLES` where scores are by K."""

    methods: Sequence[Method]
    rows: "DataFrame"
    axis: str

    def divisor(self, run: RunHistory) -> float:
        """Return the optimizer steps of a step of the frame."""
        return run.per_step if self.axis == BATCHES and run.per_step else 1.0

    @functools.cached_property
    def summary(self) -> dict[tuple[str, str], dict[str, float]]:
        """By metric and run the number of known values, the first, last, mean, smallest and largest one."""
        values = self.rows.groupby(["metric", "run"], observed=True, sort=False)["value"]
        return values.agg(["count", "first", "last", "mean", "min", "max"]).dropna().to_dict("index")

    @functools.cached_property
    def known(self) -> set[str]:
        """The metrics of which some run has a value."""
        return {metric for metric, _ in self.summary}

    def has_any(self, chart: Chart) -> bool:
        """Return whether some run has anything of a chart."""
        return not self.known.isdisjoint(panel.key for panel in chart.panels)

    def occurs(self, metric: str) -> bool:
        """Return whether a metric is a number other than 0 somewhere."""
        return any(one["min"] or one["max"] for (name, _), one in self.summary.items() if name == metric)

    def cell(self, run: RunHistory, metric: str, form: str, *whats: str) -> str:
        """Return columns of `summary`, such as "first → last"; one for a single value."""
        known = self.summary.get((metric, run.name))
        if known is None:
            return NOT_AVAILABLE
        return " → ".join(form.format(known[what]) for what in (whats[-1:] if known["count"] == 1 else whats))


def read_metrics(methods: Sequence[Method], metrics: Iterable[str]) -> Metrics:
    """Return metrics of runs by their keys: see this module's description."""
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
    keys: Sequence[tuple[str, str, str, int | None]],
    points: Sequence[np.ndarray],
    columns: Sequence[str] = ("step", "value"),
) -> "DataFrame":
    """Return the tidy frame of (n, C) points with these columns; `keys`: metric, method, run and seed of each."""
    import pandas as pd

    table = pd.DataFrame(keys, columns=list(_KEYS)).astype({"seed": float} | dict.fromkeys(_KEYS[:3], "category"))
    rows = table.take(np.repeat(np.arange(len(keys)), [len(own) for own in points])).reset_index(drop=True)
    values = np.concatenate([np.empty((0, len(columns))), *points])
    return rows.assign(**dict(zip(columns, values.T, strict=True)))


def _points(run: RunHistory, metric: str) -> np.ndarray:
    """Return (n, 2) optimizer steps, ascending, and values of a metric."""
    if metric == "overhead":
        return _overhead(run)
    if metric == "l1_share":  # the dose of all-right prompts against mixed ones in sums of |advantage|
        return _pairs(l1_shares(run))
    if metric.startswith("eval:"):
        name = metric.removeprefix("eval:")
        return _pairs((step, scores[name]) for step, scores in sorted(run.scores.items()) if name in scores)
    return run.points(metric)


def _pairs(pairs: Iterable[tuple[float, float]]) -> np.ndarray:
    return np.array([*pairs], dtype=float).reshape(-1, 2)


def _overhead(run: RunHistory) -> np.ndarray:
    """Return the share of a step's time that MINER's advantages took."""
    seconds, totals = run.points("miner/seconds"), run.points("step_time")
    totals = totals[np.nan_to_num(totals[:, 1]) != 0]
    steps, at, to = np.intersect1d(seconds[:, 0], totals[:, 0], return_indices=True)
    # the first is of a generation batch, the second of an optimizer step
    return np.stack([steps, seconds[at, 1] / totals[to, 1] / (run.per_step or 1.0)], axis=1)
