"""Tables of the prompts of training runs: how many came out how, and which were never solved or were forgotten."""

import os.path
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from ..runs.history import RunHistory
from ..runs.prompt_outcomes import KINDS
from ..runs.token_credit import recorded_prompts
from ..tables import Link, Table
from ..text import one_line
from .prompts import VISITS, Prompts

_LISTED_RUNS = 3
_LISTED = 20  # prompts of a table
_INSPECT = "inspect.html"  # in the run folder


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
