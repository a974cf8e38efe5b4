"""What became of the prompts of the training set, from the ledgers of runs: pictures, and tables of single prompts.

# B generation batches, P prompts that a ledger names, V visits
"""

import functools
import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from ..runs.history import RunHistory
from ..runs.prompt_ledger import Ledger, read_ledger
from ..runs.prompt_outcomes import ALL_RIGHT, KINDS, Outcomes, outcomes_of
from ..runs.token_credit import recorded_prompts
from ..tables import Link, Table
from ..text import one_line
from .charts import PROMPTS, SKIPPED
from .curves import plan_chart
from .frame import Metrics, as_rows
from .grouping import Method, methods_with
from .pages import Plan

if TYPE_CHECKING:
    from pandas import DataFrame

_LISTED_RUNS = 3
_LISTED = 20  # prompts of a table
_INSPECT = "inspect.html"  # in the run folder
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

        Columns: "visits"; "right", rollouts of all visits; "correct", "rollouts" and "step" of the last visit;
        "solved", the step of the last visit at which all were right, or NaN.
        """
        import pandas as pd

        own = self.outcomes
        visits = pd.DataFrame({"prompt": own.prompts_V, "correct": own.correct_V, "rollouts": own.rollouts_V})
        visits["step"] = self.steps_B[own.batches_V]
        visits["solved"] = visits["step"].where(own.kinds_V == ALL_RIGHT)
        last = visits.groupby("prompt").agg({"correct": "last", "rollouts": "last", "step": "last", "solved": "max"})
        return last.assign(**visits.groupby("prompt")["correct"].agg(visits="size", right="sum"))

    @property
    def never_solved(self) -> "DataFrame":
        """The prompts without a right rollout, those with the most visits first."""
        found = self.by_prompt.query("right == 0 and visits >= @VISITS")
        return found.sort_values("visits", ascending=False, kind="stable")

    @property
    def forgotten(self) -> "DataFrame":
        """The prompts that were all right at a visit and at most half right at their last, the worst first."""
        shares = self.by_prompt.eval("correct / rollouts").sort_values(kind="stable")
        return self.by_prompt.loc[shares[shares <= 0.5].index].dropna(subset="solved")

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
    having = methods_with(metrics.methods, prompts)
    if not having:
        return []
    metrics = replace(metrics, methods=having, rows=_rows(having, prompts, metrics))
    is_stream = any(own.total is None for own in prompts.values())
    more = " Of a stream: shares of the prompts seen so far." if is_stream else ""
    plans = [plan_chart(replace(PROMPTS, caption=PROMPTS.caption + more), metrics)]
    choosing = methods_with(having, {name for name, own in prompts.items() if own.skipped_B.any()})
    if choosing:
        alone = len(choosing) == 1 < len(having)  # one line has no legend
        more = f" This is {choosing[0].label}; the others passed over nothing." if alone else ""
        own = replace(metrics, methods=choosing)
        plans.append(plan_chart(replace(SKIPPED, caption=SKIPPED.caption + more), own))
    return plans


def _rows(methods: Sequence[Method], prompts: Mapping[str, Prompts], metrics: Metrics) -> "DataFrame":
    """Return tidy rows of the prompts by their last visit so far, of those passed over, and of the rollouts saved."""
    keys, points = [], []
    for method in methods:
        for run in method.runs:
            own = prompts[str(run.folder)]
            skipped, visited = own.skipped_B * own.rollouts_B, own.visited_B * own.rollouts_B
            shares = dict(zip((panel.key for panel in PROMPTS.panels), own.shares(), strict=True))
            shares["skipped"] = skipped / (skipped + visited)
            shares["saved"] = skipped.cumsum() / (skipped + visited).cumsum()
            keys += [(metric, method.label, run.name, run.seed) for metric in shares]
            points += [np.stack([own.steps_B / metrics.divisor(run), values], axis=1) for values in shares.values()]
    return as_rows(keys, points)


def prompt_tables(runs: Sequence[RunHistory], prompts: Mapping[str, Prompts], target: Path) -> list[Table]:
    """Return a table of the runs, and for some of them tables of the prompts that were never solved or forgotten.

    Args:
        runs: All of a report.
        prompts: What `read_prompts` gave.
        target: The folder of the report, from which its links start.
    """
    having = [run for run in runs if str(run.folder) in prompts]
    if not having:
        return []
    tables = [_runs_table(having, prompts)]
    for run in having[:_LISTED_RUNS]:
        tables += _listed_tables(run, prompts[str(run.folder)], target)
    return tables


def _runs_table(runs: Sequence[RunHistory], prompts: Mapping[str, Prompts]) -> Table:
    has_skipped = any(prompts[str(run.folder)].skipped_B.any() for run in runs)
    header = ["Run", "Prompts", "Seen", "Visits of each", *(kind.capitalize() for kind in KINDS)]
    header += ["Never solved", "Forgotten", *(["Passed over", "Rollouts saved"] if has_skipped else [])]
    rows = []
    for run in runs:
        own = prompts[str(run.folder)]
        seen = len(own.ledger.keys)
        counts = [seen, *own.outcomes.counts_BK[-1], len(own.never_solved), len(own.forgotten)]
        cells = ["a stream" if own.total is None else f"{own.total:,}", *(f"{count:,}" for count in counts)]
        cells.insert(2, f"{own.visited_B.sum() / max(1, seen):.1f}")
        if has_skipped:
            saved, made = ((values * own.rollouts_B).sum() for values in (own.skipped_B, own.visited_B))
            cells += [f"{own.skipped_B.sum():,}", f"{saved:,} ({saved / (saved + made):.0%})"]
        rows.append([run.name, *cells])
    notes = [
        f"All right, mixed, all wrong: at a prompt's last visit. Never solved: no right rollout in {VISITS} visits or "
        "more. Forgotten: all right at a visit, and at most half right at the last one."
    ]
    if has_skipped:
        notes.append(
            "Passed over: how often prompt_selection left a prompt out. Rollouts saved: those that these prompts "
            "would have taken, and their share of what would have been generated."
        )
    if len(runs) > _LISTED_RUNS:
        notes.append(
            f"The prompts of the first {_LISTED_RUNS} runs are listed. Give fewer runs to see those of others."
        )
    return Table("Prompts by run", header, rows, notes)


def _listed_tables(run: RunHistory, prompts: Prompts, target: Path) -> list[Table]:
    """Return the tables of a run that have rows."""
    unsolved = {row.Index: [f"{row.visits}", f"step {row.step}"] for row in prompts.never_solved.itertuples()}
    forgotten = {
        row.Index: [f"step {row.solved:.0f}", f"step {row.step}: {row.correct} of {row.rollouts} right"]
        for row in prompts.forgotten.itertuples()
    }
    tables = []
    for title, header, cells in (
        ("never solved", ["Visits", "Last visit"], unsolved),
        ("forgotten", ["Last all right", "Last visit"], forgotten),
    ):
        listed = [*cells][:_LISTED]
        links = _links(run, prompts, {*listed}, target)
        rows = [
            [f"{at}", one_line(prompts.ledger.texts[prompt]), *cells[prompt], links.get(prompt, "")]
            for at, prompt in enumerate(listed, 1)
        ]
        notes = [f"{len(cells) - len(rows):,} more are not listed."] if len(cells) > len(rows) else []
        if links and not (run.folder / _INSPECT).is_file():
            notes.append(f"The links lead to a page that is yet to be made: trl-miner inspect {run.folder}")
        if rows:
            width = None if links else -1
            rows, header = [row[:width] for row in rows], ["", "Prompt", *header, "Rollouts"][:width]
            tables.append(Table(f"Prompts {title}: {run.name}", header, rows, notes, is_text=True))
    return tables


def _links(run: RunHistory, prompts: Prompts, wanted: set[int], target: Path) -> dict[int, Link]:
    """Return for each wanted prompt that has token records a link to the last one on the page of `inspect`.

    A record holds the prompt as the model reads it. It is of that prompt of its batch whose text it holds; where it
    holds several, of the longest.
    """
    page = quote(os.path.relpath(run.folder.resolve() / _INSPECT, target.resolve()))
    found: dict[int, Link] = {}
    for step, group, text in recorded_prompts(run.folder) if wanted else ():
        batch = int(np.searchsorted(prompts.steps_B, step, side="right")) - 1  # one may train for several steps
        there = prompts.ledger.batches[batch].prompts if batch >= 0 else ()
        if wanted.isdisjoint(there):
            continue
        shown = " ".join(text.split())
        texts = {prompt: prompts.ledger.texts[prompt] for prompt in there}
        fitting = [prompt for prompt, own in texts.items() if own and all(part in shown for part in own.split(" … "))]
        if fitting and (prompt := max(fitting, key=lambda one: len(texts[one]))) in wanted:
            found[prompt] = Link(f"step {step}", f"{page}#{step}/{group}")
    return found
