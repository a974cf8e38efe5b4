"""What became of the prompts of the training set, from the ledgers of runs."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..runs.history import RunHistory
from ..runs.prompt_ledger import ALL_RIGHT, KINDS, Ledger, Outcomes, outcomes_of, read_ledger
from ..tables import Table

if TYPE_CHECKING:
    from pandas import DataFrame

VISITS = 2  # at least, of a prompt that counts as never solved


@dataclass(frozen=True)
class Prompts:
    """The ledger of a run, and the outcomes of its visits."""

    ledger: Ledger
    outcomes: Outcomes

    @functools.cached_property
    def batches(self) -> "DataFrame":
        """A row for each generation batch: the first optimizer "step" that trains on it, and how many prompts were
        "visited" and "skipped" (by `prompt_selection`)."""
        import pandas as pd

        rows = [(batch.step, len(batch.prompts), len(batch.skipped)) for batch in self.ledger.batches]
        return pd.DataFrame(rows, columns=["step", "visited", "skipped"])

    @functools.cached_property
    def by_prompt(self) -> "DataFrame":
        """A row for each prompt with visits that could be judged, by its number.

        Columns: "text"; "visits"; "right", rollouts of all visits; "correct", "rollouts" and "step" of the last visit;
        "solved", the step of the last visit at which all were right, or NaN; "never_solved", whether none was right in
        at least `VISITS` visits; "forgotten", whether all were right once, and at most half at the last visit.
        """
        visits = self.outcomes.visits
        visits = visits.assign(step=self.batches["step"].to_numpy()[visits["batch"]])
        visits["solved"] = visits["step"].where(visits["kind"] == ALL_RIGHT)
        last = visits.groupby("prompt").agg({"correct": "last", "rollouts": "last", "step": "last", "solved": "max"})
        last = last.assign(**visits.groupby("prompt")["correct"].agg(visits="size", right="sum"))
        return last.assign(
            text=[self.ledger.texts[prompt] for prompt in last.index],
            never_solved=(last["right"] == 0) & (last["visits"] >= VISITS),
            forgotten=last["solved"].notna() & (last["correct"] <= last["rollouts"] / 2),
        )


def read_prompts(runs: Sequence[RunHistory]) -> tuple[dict[str, Prompts], list[str]]:
    """Return by run folder what the ledgers say, for runs that have one, and notes on what could not be read."""
    found, notes = {}, []
    for run in runs:
        if ledger := read_ledger(run.folder):
            notes += [f"{run.name}: {note}" for note in ledger.notes]
            if ledger.batches:
                found[str(run.folder)] = Prompts(ledger, outcomes_of(ledger))
    return found, notes


def prompts_table(runs: Sequence[RunHistory], prompts: Mapping[str, Prompts]) -> Table | None:
    """Return how the prompts of each run came out; None: no run has a ledger."""
    header = ["Run", "Prompts", "Visits of each", "Seen", *(kind.capitalize() for kind in KINDS)]
    header += ["Never solved", "Forgotten", "Passed over"]
    rows = []
    for run in [run for run in runs if str(run.folder) in prompts]:
        own = prompts[str(run.folder)]
        seen, total, visited = len(own.ledger.keys), own.ledger.header["rows"], own.batches["visited"].sum()
        flags = own.by_prompt[["never_solved", "forgotten"]].sum()
        counts = [seen, *own.outcomes.counts_BK[-1], *flags, own.batches["skipped"].sum()]
        cells = ["a stream" if total is None else f"{total:,}", f"{visited / max(1, seen):.1f}"]
        rows.append([run.name, *cells, *(f"{count:,}" for count in counts)])
    notes = [
        f"All right, mixed, all wrong: at a prompt's last visit. Never solved: no right rollout in {VISITS} visits or "
        "more. Forgotten: all right at a visit, and at most half right at the last one. Passed over: how often "
        "prompt_selection left a prompt out."
    ]
    return Table("Prompts by run", header, rows, notes) if rows else None
