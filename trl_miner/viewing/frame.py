"""The numbers of training runs as one tidy frame, of which charts and tables are made.

A row is the value of a metric of a run at a step:

    metric  a key of the log; "eval:pass@1", a score on held-out problems; or "l1_share"
    method  the label of the method
    run     the name of the run, unique among those given
    seed    the seed, NaN where it was not recorded
    step    generation batches, where every run says how many optimizer steps one has; else optimizer steps; or K
    value   NaN is a gap
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..runs.history import RunHistory
from .inputs import Method, runs_of

if TYPE_CHECKING:
    from pandas import DataFrame

BATCHES, STEPS, SAMPLES = (
    "step (generation batches)",
    "step (of the optimizer)",
    "K (samples of each problem)",
)


@dataclass(frozen=True)
class Metrics:
    """Metrics of some methods, whose runs have names that differ, as tidy rows. `axis` says what
    their steps are: `BATCHES`, `STEPS`, or `SAMPLES` where scores are by K."""

    methods: Sequence[Method]
    rows: "DataFrame"
    axis: str

    @functools.cached_property
    def known(self) -> set[str]:
        """The metrics of which some run has a value."""
        return {*self.rows["metric"][self.rows["value"].notna()].unique()}

    def occurs(self, metric: str) -> bool:
        """Return whether a metric is a number other than 0 somewhere."""
        return bool(self.rows["value"][self.rows["metric"] == metric].fillna(0).any())


def read_metrics(methods: Sequence[Method], metrics: Iterable[str]) -> Metrics:
    """Return metrics of runs by their keys: see this module's description."""
    import pandas as pd

    runs = runs_of(methods)
    axis = BATCHES if runs and all(run.per_step for _, run in runs) else STEPS
    keys, points = [], [np.empty((0, 2))]
    for metric in dict.fromkeys(metrics):
        for label, run in runs:
            keys.append((metric, label, run.name, run.seed))
            points.append(
                _points(run, metric) / [(run.per_step or 1.0) if axis == BATCHES else 1.0, 1.0]
            )
    table = (
        pd.DataFrame(keys, columns=["metric", "method", "run", "seed"])
        .astype({"seed": float})
        .astype("category")
    )
    rows = table.take(
        np.repeat(np.arange(len(keys)), [len(own) for own in points[1:]])
    ).reset_index(drop=True)
    steps, values = np.concatenate(points).T
    return Metrics(methods, rows.assign(step=steps, value=values), axis)


def _points(run: RunHistory, metric: str) -> np.ndarray:
    """Return (n, 2) optimizer steps, ascending, and values of a metric."""
    if metric.startswith("eval:"):
        name = metric.removeprefix("eval:")
        pairs = [
            (step, scores[name]) for step, scores in sorted(run.scores.items()) if name in scores
        ]
        return np.array(pairs).reshape(-1, 2)
    return run.points(metric)
