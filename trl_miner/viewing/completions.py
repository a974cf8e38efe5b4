"""What TRL's completions files of a run say: length by outcome, how many differ, and some to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..runs.completions import TEXTS, completions_files, reward_columns
from ..runs.files import read_parquet
from ..runs.history import RunHistory, number
from .charts import MOST_COMPLETION_FILES
from .spreads import as_number

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Completions:
    """Measures of a run's completions files as logs, some rows of the last, the column of the reward that decides, and
    what could not be read."""

    logs: Sequence[Mapping[str, Any]]
    last: Sequence[Mapping[str, Any]]
    reward: str | None
    notes: Sequence[str]


def read_completions(run: RunHistory, *, rows: int = 6) -> Completions:
    """Read the completions files of a run, damaged ones as far as they go, and keep some rows of the last."""
    paths = completions_files(run.folder)
    if len(paths) > MOST_COMPLETION_FILES:
        last_place, parts = len(paths) - 1, MOST_COMPLETION_FILES - 1
        paths = [paths[round(place * last_place / parts)] for place in range(MOST_COMPLETION_FILES)]
    threshold = number(as_number(run.settings.get("correct_threshold"), 1.0)) or 1.0
    logs, last, notes, reward = [], [], [], None
    for path in paths:
        table, note = read_parquet(path)
        notes += [note] if note else []
        if table is None or not table.num_rows or not TEXTS <= set(table.column_names):
            continue
        reward = _reward_column(run, table.column_names)
        logs.append(_measure(table.to_pandas(), reward, threshold))
        kept = min(rows, table.num_rows)
        last = table.take([place * table.num_rows // kept for place in range(kept)]).to_pylist()
    return Completions(sorted(logs, key=lambda log: log["step"]), last, reward, notes)


def completions_history(run: RunHistory, completions: Completions | None = None) -> RunHistory:
    """Return the run with the measures of its completions files as its logs, to be drawn as "completions"."""
    return replace(run, logs=(completions or read_completions(run)).logs)


def _measure(rollouts: "DataFrame", reward: str | None, threshold: float) -> dict[str, float]:
    log = {"step": float(rollouts["step"].max())}
    if reward is not None:
        lengths, rewards = rollouts["completion"].str.len(), rollouts[reward].astype(float)
        for name, chosen in (("right", rewards >= threshold), ("wrong", rewards < threshold)):  # unscorable: neither
            if chosen.any():
                log[f"completions/{name}_characters"] = float(lengths[chosen].mean())
    groups = rollouts.groupby("prompt")["completion"]
    return log | {"completions/distinct": float((groups.nunique() / groups.count()).mean())}


def _reward_column(run: RunHistory, names: Sequence[str]) -> str | None:
    """Return the column of the reward that decides, which is the first where nothing else was set."""
    rewards = reward_columns(names)
    chosen = run.settings.get("correct_reward_func", "None")
    return chosen if chosen in rewards else next(iter(rewards), None)
