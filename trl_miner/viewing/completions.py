"""A few completions of a run to read, from the last of TRL's completions files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..runs.files import read_parquet
from ..runs.history import RunHistory, number
from ..tables import Table
from ..text import one_line

_ROWS = 6
_TEXTS = {"step", "prompt", "completion"}  # in every file of TRL; each other column is a reward function's, but for:
_NOT_REWARDS = _TEXTS | {"advantage", "images"}


def completions_files(run: Path) -> list[Path]:
    """Return the files that TRL writes with `log_completions: true`, in the order of their steps."""
    return sorted((run / "completions").glob("*.parquet"))


def completions_table(run: RunHistory) -> tuple[Table | None, list[str]]:
    """Return rollouts of the last file that can be read, spread over it, and what could not be read.

    None: the run recorded none.
    """
    notes = []
    for path in reversed(completions_files(run.folder)):
        table, note = read_parquet(path)
        notes += [f"{run.name}: {note}"] if note else []
        if table is None or not table.num_rows or not _TEXTS <= set(table.column_names):
            continue
        kept = min(_ROWS, table.num_rows)
        rollouts = table.take([place * table.num_rows // kept for place in range(kept)]).to_pylist()
        types = {name: str(table.schema.field(name).type) for name in table.column_names}
        rewards = [name for name, kind in types.items() if kind in ("float", "double") and name not in _NOT_REWARDS]
        rows = [[str(at), *_cells(rollout, rewards)] for at, rollout in enumerate(rollouts, 1)]
        title = f"Some rollouts of step {rollouts[0]['step']} of {run.name}"
        return Table(title, ["", "Prompt", "Completion", *rewards], rows, is_text=True), notes
    return None, notes


def _cells(rollout: Mapping[str, Any], rewards: list[str]) -> list[str]:
    texts = [one_line(_as_text(rollout["prompt"]), 300), one_line(_as_text(rollout["completion"]), 600)]
    values = [number(rollout[name]) for name in rewards]
    return [*texts, *("unscorable" if value is None else f"{value:g}" for value in values)]


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
