"""What became of the prompts of the training set, from the ledgers of runs.

# B generation batches, P prompts that a ledger names, V visits
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..runs.history import RunHistory
from ..runs.prompt_ledger import ALL_RIGHT, KINDS, Ledger, Outcomes, outcomes_of, read_ledger
from ..tables import Table
from .charts import PROMPTS
from .drawing import plan_chart
from .frame import Metrics, as_rows
from .grouping import Method, methods_with
from .pages import Plan

if TYPE_CHECKING:
    from pandas import DataFrame

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
    def by_prompt(self) -> "DataFrame":
        """A row for each prompt with visits that could be judged, by its number.

        Columns: "text"; "visits"; "right", rollouts of all visits; "correct", "rollouts" and "step" of the last visit;
        "solved", the step of the last visit at which all were right, or NaN; "never_solved", whether none was right in
        at least `VISITS` visits; "forgotten", whether all were right once, and at most half at the last visit.
        """
        visits = self.outcomes.visits
        visits = visits.assign(step=self.steps_B[visits["batch"]])
        visits["solved"] = visits["step"].where(visits["kind"] == ALL_RIGHT)
        last = visits.groupby("prompt").agg({"correct": "last", "rollouts": "last", "step": "last", "solved": "max"})
        last = last.assign(**visits.groupby("prompt")["correct"].agg(visits="size", right="sum"))
        return last.assign(
            text=[self.ledger.texts[prompt] for prompt in last.index],
            never_solved=(last["right"] == 0) & (last["visits"] >= VISITS),
            forgotten=last["solved"].notna() & (last["correct"] <= last["rollouts"] / 2),
        )

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


def prompts_plan(metrics: Metrics, prompts: Mapping[str, Prompts]) -> Plan | None:
    """Return the picture of all prompts over the training; None: no run has a ledger."""
    having = methods_with(metrics.methods, prompts)
    if not having:
        return None
    return plan_chart(PROMPTS, replace(metrics, methods=having, rows=_rows(having, prompts, metrics)))


def _rows(methods: Sequence[Method], prompts: Mapping[str, Prompts], metrics: Metrics) -> "DataFrame":
    """Return tidy rows of the prompts by their last visit so far."""
    keys, points = [], []
    for method in methods:
        for run in method.runs:
            own = prompts[str(run.folder)]
            shares = dict(zip((panel.key for panel in PROMPTS.panels), own.shares(), strict=True))
            keys += [(metric, method.label, run.name, run.seed) for metric in shares]
            points += [np.stack([own.steps_B / metrics.divisor(run), values], axis=1) for values in shares.values()]
    return as_rows(keys, points)


def prompts_table(runs: Sequence[RunHistory], prompts: Mapping[str, Prompts]) -> Table | None:
    """Return how the prompts of each run came out; None: no run has a ledger."""
    has_skipped = any(own.skipped_B.any() for own in prompts.values())
    header = ["Run", "Prompts", "Visits of each", "Seen", *(kind.capitalize() for kind in KINDS)]
    header += ["Never solved", "Forgotten", *(["Passed over", "Rollouts saved"] if has_skipped else [])]
    rows = []
    for run in runs:
        if (own := prompts.get(str(run.folder))) is None:
            continue
        seen = len(own.ledger.keys)
        flags = own.by_prompt[["never_solved", "forgotten"]].sum()
        cells = ["a stream" if own.total is None else f"{own.total:,}", f"{own.visited_B.sum() / max(1, seen):.1f}"]
        cells += [f"{count:,}" for count in (seen, *own.outcomes.counts_BK[-1], *flags)]
        if has_skipped:
            saved, made = ((values * own.rollouts_B).sum() for values in (own.skipped_B, own.visited_B))
            cells += [f"{own.skipped_B.sum():,}", f"{saved:,} ({saved / (saved + made):.0%})"]
        rows.append([run.name, *cells])
    notes = [
        f"All right, mixed, all wrong: at a prompt's last visit. Never solved: no right rollout in {VISITS} visits or "
        "more. Forgotten: all right at a visit, and at most half right at the last one.",
        *(["Passed over: how often prompt_selection left a prompt out, and the rollouts saved."] * has_skipped),
    ]
    return Table("Prompts by run", header, rows, notes) if rows else None
