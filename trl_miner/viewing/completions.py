"""What TRL's completions files of a run say: length by outcome, how many differ, and some to read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..reward_functions import find_verifier
from ..runs.completions import TEXTS, completions_files, reward_columns
from ..runs.files import read_parquet
from ..runs.history import RunHistory
from ..runs.training_record import read_verifier
from .cells import as_number
from .charts import MOST_COMPLETION_FILES

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Completions:
    """Measures of a run's completions files as logs, some rows of the last, their column with the reward that decides,
    and what could not be read."""

    logs: Sequence[Mapping[str, Any]]
    last: Sequence[Mapping[str, Any]]
    reward: str | None
    notes: Sequence[str]


def read_completions(run: RunHistory, *, rows: int = 6) -> Completions:
    """Read the completions files of a run, and keep some rows of the last."""
    import pandas as pd

    paths = completions_files(run.folder)
    if len(paths) > MOST_COMPLETION_FILES:
        last_place, parts = len(paths) - 1, MOST_COMPLETION_FILES - 1
        paths = [paths[round(place * last_place / parts)] for place in range(MOST_COMPLETION_FILES)]
    threshold = as_number(run.settings.get("correct_threshold"), 1.0)
    logs, last, notes, reward = [], [], [], None
    for path in paths:
        table, note = read_parquet(path)
        notes += [note] if note else []
        if table is None or not table.num_rows or not TEXTS <= set(table.column_names):
            continue
        rollouts = pd.DataFrame(table.to_pylist())  # conversations as lists of dicts
        for name in ("prompt", "completion"):
            rollouts[name] = rollouts[name].map(_as_text)
        reward = _add_verdicts(run, rollouts)
        logs.append(_measure(rollouts, reward, threshold))
        kept = min(rows, len(rollouts))
        last = rollouts.iloc[[place * len(rollouts) // kept for place in range(kept)]].to_dict("records")
    return Completions(sorted(logs, key=lambda log: log["step"]), last, reward, notes)


def completions_history(run: RunHistory, completions: Completions | None = None) -> RunHistory:
    """Return the run with the measures of its completions files as its logs, to be drawn as "completions"."""
    return replace(run, logs=(completions or read_completions(run)).logs)


def _measure(rollouts: "DataFrame", reward: str | None, threshold: float) -> dict[str, float]:
    log = {"step": float(rollouts["step"].max())}
    if reward is not None:
        # as the trainer compares them: 0.7 in float32 is less than 0.7
        lengths, rewards = rollouts["completion"].str.len(), rollouts[reward].astype("float32")
        threshold = float(np.float32(threshold))
        for name, chosen in (("right", rewards >= threshold), ("wrong", rewards < threshold)):  # unscorable: neither
            if chosen.any():
                log[f"completions/{name}_characters"] = float(lengths[chosen].mean())
    groups = rollouts.groupby("prompt")["completion"]
    return log | {"completions/distinct": float((groups.nunique() / groups.count()).mean())}


def _as_text(said: Any) -> str:
    """Return the messages of a conversation after the system's, with their roles if several; a text as it is."""
    if said is None or isinstance(said, str):
        return said or ""
    texts = [(message.get("role"), _content(message)) for message in said if message.get("role") != "system"]
    return texts[0][1] if len(texts) == 1 else "\n".join(f"{role}: {text}" for role, text in texts)


def _content(message: Mapping[str, Any]) -> str:
    """Return what a message says, and the tools that it calls."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text") or f"[{part.get('type')}]" for part in content)
    calls = [_without_nulls(call.get("function") or call) for call in message.get("tool_calls") or ()]
    return "\n".join([*([content] if content else []), *(json.dumps(call, ensure_ascii=False) for call in calls)])


def _without_nulls(value: Any) -> Any:
    """Leave out the keys that only other calls have, which Parquet fills with nulls."""
    if isinstance(value, dict):
        return {key: _without_nulls(own) for key, own in value.items() if own is not None}
    return [_without_nulls(own) for own in value] if isinstance(value, list) else value


def _add_verdicts(run: RunHistory, rollouts: "DataFrame") -> str | None:
    """Add a column of the reward that decides what is correct, and return its name; None: there are no rewards."""
    columns = reward_columns([*rollouts])
    recorded = read_verifier(run.folder)
    if recorded is None:  # damaged, or not there; other columns than rewards may follow them
        verifier = find_verifier(columns, None)
        recorded = (columns[:1] if verifier.is_guess else [*verifier.names], False)
    names = [name for name in dict.fromkeys(recorded[0]) if name in columns]
    title = " and ".join(names)
    if names:
        rollouts[title] = rollouts[names].astype(float).min(axis=1, skipna=not recorded[1])
    return title or None
