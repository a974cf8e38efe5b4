"""What became of the prompts of the training set, from the ledgers of runs: pictures. `prompt_tables` has the tables.

# B generation batches, P prompts that a ledger names, V visits
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runs.history import RunHistory
from ..runs.prompt_ledger import Ledger, read_ledger
from ..runs.prompt_outcomes import ALL_RIGHT, KINDS, Outcomes, outcomes_of
from ..text import for_picture
from .charts import PROMPTS, SKIPPED
from .curves import plan_chart
from .figures import COLORS, GRID, add_legend, finish_axes, new_figure
from .frame import Metrics, as_rows
from .grouping import Method
from .pages import Plan

if TYPE_CHECKING:
    from pandas import DataFrame

_AREAS = dict(zip((*KINDS, "unseen"), (COLORS[2], COLORS[3], COLORS[1], GRID), strict=True))  # from below
_MOST_PANELS = 9
_MOST_STEPS = 200  # of a panel's areas
VISITS = 2  # at least, of a prompt that counts as never solved


@dataclass(frozen=True)
class Prompts:
    """The ledger of a run, and what it says of its prompts.

    Attributes:
        ledger: What was read.
        outcomes: Its visits.
        total: Prompts of the training set; None: a stream.
        steps_B: First optimizer step that trains on each batch.
        skipped_B: Prompts that `prompt_selection` passed over for each batch.
        visited_B: Prompts that were generated for, those that dynamic sampling dropped included.
        rollouts_B: Rollouts of each prompt.
    """

    ledger: Ledger
    outcomes: Outcomes
    total: int | None
    steps_B: np.ndarray
    skipped_B: np.ndarray
    visited_B: np.ndarray
    rollouts_B: np.ndarray

    @functools.cached_property
    def visits_P(self) -> np.ndarray:
        """Visits that could be judged."""
        return np.bincount(self.outcomes.prompts_V, minlength=len(self.ledger.keys))

    @functools.cached_property
    def never_solved(self) -> np.ndarray:
        """Prompts without a right rollout, those with the most rollouts first."""
        right_P = np.bincount(self.outcomes.prompts_V, self.outcomes.correct_V, len(self.ledger.keys))
        found = np.flatnonzero((right_P == 0) & (self.visits_P >= VISITS))
        return found[np.argsort(-self.visits_P[found], kind="stable")]

    @functools.cached_property
    def forgotten(self) -> np.ndarray:
        """Prompts that were all right at a visit and at most half right at their last, the worst first."""
        own, places_P = self.outcomes, self.last_places_P
        was_right_P = np.zeros(len(self.ledger.keys), dtype=bool)
        was_right_P[own.prompts_V[own.kinds_V == ALL_RIGHT]] = True
        shares_V = own.correct_V / own.rollouts_V
        found = np.flatnonzero(was_right_P)
        found = found[shares_V[places_P[found]] <= 0.5]
        return found[np.argsort(shares_V[places_P[found]], kind="stable")]

    @functools.cached_property
    def last_places_P(self) -> np.ndarray:
        """The place of each prompt's last visit among the visits, -1 where there is none."""
        places = np.full(len(self.ledger.keys), -1)
        places[self.outcomes.prompts_V] = np.arange(len(self.outcomes.prompts_V))
        return places

    @functools.cached_property
    def last_right_P(self) -> np.ndarray:
        """The place of the last visit at which all rollouts were right, -1 where there is none."""
        places, right = np.full(len(self.ledger.keys), -1), np.flatnonzero(self.outcomes.kinds_V == ALL_RIGHT)
        places[self.outcomes.prompts_V[right]] = right
        return places

    def step_of(self, place: int) -> int:
        """Return the step of a visit."""
        return int(self.steps_B[self.outcomes.batches_V[place]])

    def shares(self) -> np.ndarray:
        """Return (4, B) shares of all prompts: those of each kind at their last visit so far, and the unseen."""
        counts = self.outcomes.counts_BK.T
        seen = counts.sum(axis=0)
        total = np.maximum(seen, 1 if self.total is None else self.total)
        return np.vstack([counts, total - seen]) / total


def read_prompts(runs: Sequence[RunHistory]) -> tuple[dict[str, Prompts], list[str]]:
    """Return by run folder what the ledgers say, for runs that have one, and notes on what could not be read."""
    found, notes = {}, []
    for run in runs:
        ledger = read_ledger(run.folder)
        if ledger is None:
            continue
        notes += [f"{run.name}: {note}" for note in ledger.notes]
        if ledger.batches:
            columns = [(b.step, len(b.skipped), len(b.prompts), b.rollouts) for b in ledger.batches]
            found[str(run.folder)] = Prompts(ledger, outcomes_of(ledger), ledger.header["rows"], *np.array(columns).T)
    return found, notes


def prompt_plans(metrics: Metrics, prompts: Mapping[str, Prompts]) -> list[Plan]:
    """Return the pictures: all prompts over the training, and what `prompt_selection` left out."""
    having = _having(metrics.methods, prompts)
    if not having:
        return []
    caption = PROMPTS.caption
    if any(prompts[str(run.folder)].total is None for method in having for run in method.runs):
        caption += " Of a stream: shares of the prompts seen so far."
    if any(len(method.runs) > 1 for method in having):
        caption += " Mean over the runs of a method."
    if len(having) > _MOST_PANELS:
        caption += f" The first {_MOST_PANELS} of {len(having)} methods are shown: give fewer runs to see the others."
    plans = [Plan(PROMPTS.name, PROMPTS.title, caption, lambda: draw_prompts(having, prompts, metrics))]
    choosing = _having(metrics.methods, {name: own for name, own in prompts.items() if own.skipped_B.any()})
    if choosing:
        alone = len(choosing) == 1 < len(having)  # one line has no legend
        more = f" This is {choosing[0].label}; the others passed over nothing." if alone else ""
        own = replace(metrics, methods=choosing, rows=_selection_rows(choosing, prompts, metrics))
        plans.append(plan_chart(replace(SKIPPED, caption=SKIPPED.caption + more), own))
    return plans


def _having(methods: Sequence[Method], prompts: Mapping[str, Prompts]) -> list[Method]:
    """Return the methods with those of their runs that are in `prompts`."""
    kept = [[run for run in method.runs if str(run.folder) in prompts] for method in methods]
    return [Method(m.label, runs, m.style_index) for m, runs in zip(methods, kept, strict=True) if runs]


def _selection_rows(methods: Sequence[Method], prompts: Mapping[str, Prompts], metrics: Metrics) -> Any:
    """Return tidy rows of the share of drawn prompts that were passed over, and of the rollouts saved so far."""
    keys, points = [], []
    for metric, summed in (("skipped", np.asarray), ("saved", np.cumsum)):
        for method in methods:
            for run in method.runs:
                own = prompts[str(run.folder)]
                skipped, visited = (summed(values * own.rollouts_B) for values in (own.skipped_B, own.visited_B))
                keys.append((metric, method.label, run.name, run.seed))
                points.append(np.stack([own.steps_B / metrics.divisor(run), skipped / (skipped + visited)], axis=1))
    return as_rows(keys, points)


def draw_prompts(methods: Sequence[Method], prompts: Mapping[str, Prompts], metrics: Metrics) -> Any:
    """Draw the shares of all prompts over the steps as stacked areas, a panel for each method."""
    shown = methods[:_MOST_PANELS]
    figure, panels = new_figure(len(shown), len(_AREAS), columns=min(3, len(shown)))
    for axes, method in zip(panels, shown, strict=True):
        shares = _mean_shares([(prompts[str(run.folder)], metrics.divisor(run)) for run in method.runs])
        axes.stackplot(shares.index, shares.T, labels=[*_AREAS], colors=[*_AREAS.values()], linewidth=0)
        title = for_picture(method.label) if len(methods) > 1 else ""
        finish_axes(axes, title=title, xlabel=metrics.axis, ylabel="share of prompts", percent=True, steps=True)
        axes.set(ylim=(0, 1))
        axes.margins(x=0)
    add_legend(figure, panels)
    return figure


def _mean_shares(runs: Sequence[tuple[Prompts, float]]) -> "DataFrame":
    """Return the mean shares over the runs by step, a column for each of `_AREAS`."""
    import pandas as pd

    shares = []
    for own, divisor in runs:
        shares.append(pd.DataFrame(own.shares().T, own.steps_B / divisor))
        if own.total is not None:  # before the training all are unseen
            shares.append(pd.DataFrame([[0.0, 0.0, 0.0, 1.0]], [0.0]))
    means = pd.concat(shares).groupby(level=0).mean()
    return means.iloc[np.unique(np.linspace(0, len(means) - 1, _MOST_STEPS).round().astype(int))]
