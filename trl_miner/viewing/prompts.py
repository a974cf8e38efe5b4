"""What became of the prompts of the training set, from the ledgers of runs."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..runs.history import RunHistory
from ..runs.prompt_ledger import KINDS, Ledger, Outcomes, outcomes_of, read_ledger
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
    def by_prompt(self) -> "DataFrame":
        """A row for each prompt with visits that could be judged, by its number.

        Columns: "text"; "visits"; "right", rollouts of all visits; "correct", "rollouts" and "step" (of the optimizer)
        of the last visit; "never_solved", whether none was right in at least `VISITS` visits.
        """
        steps = [batch.step for batch in self.ledger.batches]
        visits = self.outcomes.visits.assign(step=[steps[batch] for batch in self.outcomes.visits["batch"]])
        by_prompt = visits.groupby("prompt")
        last = by_prompt[["correct", "rollouts", "step"]].last()
        last = last.assign(**by_prompt["correct"].agg(visits="size", right="sum"))
        texts = [self.ledger.texts[prompt] for prompt in last.index]
        return last.assign(text=texts, never_solved=(last["right"] == 0) & (last["visits"] >= VISITS))


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
    kinds = [kind.capitalize() for kind in KINDS]
    rows = []
    for run in [run for run in runs if str(run.folder) in prompts]:
        own = prompts[str(run.folder)]
        seen, total = len(own.ledger.keys), own.ledger.header["rows"]
        visits = sum(len(batch.prompts) for batch in own.ledger.batches) / max(1, seen)
        counts = [seen, *own.outcomes.counts_BK[-1], own.by_prompt["never_solved"].sum()]
        of_all = "a stream" if total is None else f"{total:,}"
        rows.append([run.name, of_all, f"{visits:.1f}", *(f"{count:,}" for count in counts)])
    notes = [
        f"All right, mixed, all wrong: at a prompt's last visit. Never solved: no right rollout in {VISITS} visits or "
        "more."
    ]
    header = ["Run", "Prompts", "Visits of each", "Seen", *kinds, "Never solved"]
    return Table("Prompts by run", header, rows, notes) if rows else None
