"""Rollouts without tokens in the form of token records, so that `trl-miner inspect` shows them."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runs.history import RunHistory
from ..runs.token_credit import Credit, schema
from .prompt_outcomes import Outcomes, by_chance, read_outcomes
from .rollouts import rows_of_groups

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_TOKENS = 1_500_000  # of a page: at most 38 MB
_PIECE = re.compile(r"\S+\s*|\s+")  # a word with the space behind it
_CHARACTERS = 6  # of a word, with the space
_NOTE = (
    "These rollouts hold no tokens: a word stands for a token, as dark as the advantage of its"
    " rollout; where the files have none, as its reward less the mean of its prompt. --model"
    " CHECKPOINT shows what MINER would credit."
)


def credit_of_rollouts(
    run: str | Path, *, steps: Collection[int] | None = None, quiet: bool = True
) -> Credit:
    """Return rollouts of a run as token records: words are its tokens, each with the advantage of
    its rollout. Of many, whole prompts by chance.

    Raises:
        FileNotFoundError: It has no rollouts.
        ValueError: None of its files can be read, or a step is not there.
    """
    import pyarrow as pa

    folder = Path(run)
    outcomes = read_outcomes(RunHistory(folder, folder.name, {}), quiet=quiet)
    assert outcomes is not None
    groups = outcomes.at_steps(steps)["group"].to_numpy()
    words = outcomes.rollouts.groupby("group")["characters"].sum() // _CHARACTERS
    chosen = groups[by_chance(words[groups].to_numpy(), MOST_TOKENS)]
    rows = rows_of_groups(folder, chosen, quiet=quiet)
    # a group may have arrived over two steps
    rows["step"] = rows["group"].map(outcomes.groups.set_index("group")["step"])
    records = [
        record
        for place, (_, group) in enumerate(rows.groupby(["step", "group"]))
        for record in _records(group, place, outcomes)
    ]
    notes = [_NOTE, *outcomes.notes]
    if left_out := len(groups) - len(chosen):
        notes.append(f"{left_out:,} prompts are left out, by chance; --steps chooses others.")
    table = pa.Table.from_pylist(records, schema=schema())
    return Credit(folder.resolve().name, (), table, tuple(notes))


def _records(group: "DataFrame", place: int, outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    centered = group["reward"] - group["reward"].mean()
    group = group.assign(
        advantage=group["advantage"].fillna(centered),
        verifier_reward=group[outcomes.verifiers].min(axis=1),
    )
    kind = outcomes.groups.set_index("group")["kind"][group["group"].iloc[0]]
    for index, row in enumerate(group.to_dict("records")):
        pieces, advantage = _PIECE.findall(row["completion"]), row["advantage"]
        numbers = {name: row[name] for name in ("reward", "verifier_reward", "advantage")}
        yield {
            "step": row["step"], "group": place, "rollout": index, "kind": kind,
            "prompt": row["prompt"], "completion": row["completion"],
            **{name: None if np.isnan(value) else value for name, value in numbers.items()},
            "length": len(pieces) if np.isnan(row["length"]) else int(row["length"]),
            "token_ids": [0] * len(pieces), "tokens": pieces,
            "advantages": [0.0 if np.isnan(advantage) else advantage] * len(pieces),
        }  # fmt: skip
