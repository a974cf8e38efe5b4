"""Rollouts without tokens in the form of token records, so that `trl-miner inspect` shows them."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runs.history import RunHistory
from ..runs.token_credit import Credit, schema
from .prompt_outcomes import Outcomes, read_outcomes

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


class PromptSample:
    """Whole groups of rollouts, by chance as many as a page can show; frames pass through it."""

    def __init__(self, steps: Collection[int] | None) -> None:
        self._steps = steps
        self._draws = np.random.default_rng(0)
        self._kept: list[tuple[float, int, DataFrame]] = []
        self._size = 0
        self.seen: set[int] = set()
        self.left_out = 0  # groups

    def watch(self, frames: Iterator["DataFrame"]) -> Iterator["DataFrame"]:
        """Yield the frames as they are, and keep some of their groups."""
        for frame in frames:
            self.seen.update(frame["step"].unique().tolist())
            wanted = frame if self._steps is None else frame[frame["step"].isin([*self._steps])]
            for _, group in wanted.groupby("group", sort=False):
                size = int(group["completion"].str.len().sum()) // _CHARACTERS
                self._kept.append((self._draws.random(), size, group))
                self._size += size
            if self._size > 2 * MOST_TOKENS:
                self._drop()
            yield frame

    def groups(self) -> list["DataFrame"]:
        """Return the groups that are shown, in order."""
        self._drop()
        return sorted((kept[2] for kept in self._kept), key=lambda own: int(own["step"].iloc[0]))

    def _drop(self) -> None:
        self._kept.sort(key=lambda kept: kept[0])
        sizes = np.cumsum([kept[1] for kept in self._kept])
        count = max(1, int((sizes <= MOST_TOKENS).sum()))
        self.left_out += len(self._kept[count:])
        del self._kept[count:]
        self._size = sum(kept[1] for kept in self._kept)


def credit_of_rollouts(
    run: str | Path, *, steps: Collection[int] | None = None, quiet: bool = True
) -> Credit:
    """Return rollouts of a run as token records: words are its tokens, each with the advantage of
    its rollout.

    Raises:
        FileNotFoundError: It has no rollouts.
        ValueError: None of its files can be read, or a step is not there.
    """
    import pyarrow as pa

    folder, sample = Path(run), PromptSample(steps)
    outcomes = read_outcomes(RunHistory(folder, folder.name, {}), watch=sample.watch, quiet=quiet)
    assert outcomes is not None
    if unknown := sorted({*(steps or ())} - sample.seen):
        listed = ", ".join(map(str, sorted(sample.seen)[:8]))
        raise ValueError(
            f"--steps must name recorded steps: got {unknown[0]}, and there are {listed}, ..."
        )
    rows = [row for place, own in enumerate(sample.groups()) for row in _rows(own, place, outcomes)]
    notes = [_NOTE, *outcomes.notes]
    if sample.left_out:
        notes.append(
            f"{sample.left_out:,} prompts are left out, by chance; --steps chooses others."
        )
    table = pa.Table.from_pylist(rows, schema=schema())
    return Credit(folder.resolve().name, (), table, tuple(notes))


def _rows(group: "DataFrame", place: int, outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    kinds = outcomes.groups.set_index("group")["kind"]
    kind = kinds[group["group"].iloc[0]]
    own = [f"reward:{name}" for name in outcomes.decides]
    verifier = group[own].min(axis=1) if own else group["reward"]
    centered = group["reward"] - group["reward"].mean()
    rows = group.assign(advantage=group["advantage"].fillna(centered)).to_dict("records")
    for index, (row, verdict) in enumerate(zip(rows, verifier, strict=True)):
        pieces, advantage = _PIECE.findall(row["completion"]), row["advantage"]
        yield {
            "step": row["step"], "group": place, "rollout": index, "kind": kind,
            "prompt": row["prompt"], "completion": row["completion"],
            "reward": _known(row["reward"]), "verifier_reward": _known(verdict),
            "advantage": _known(advantage),
            "length": len(pieces) if np.isnan(row["length"]) else int(row["length"]),
            "token_ids": [0] * len(pieces), "tokens": pieces,
            "advantages": [0.0 if np.isnan(advantage) else advantage] * len(pieces),
        }  # fmt: skip


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
