"""`trainer_state.json` of a run folder and of each checkpoint: the training log, and how far the run got.

transformers writes it.
"""

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from .files import read_object
from .records import State, number

FILE = "trainer_state.json"
RECORD = TypeAdapter(State)


def last_step(folder: Path) -> int | None:
    """Return the optimizer steps done by a run folder or checkpoint; None: its state is missing or damaged."""
    try:
        step = number(read_object(folder / FILE).get("global_step"))
    except (OSError, ValueError):
        return None
    return None if step is None else int(step)


def run_state(checkpoint: Path) -> dict[str, Any]:
    """Return what the trainer keeps of a run in a checkpoint; empty: the checkpoint is of another trainer."""
    state = read_object(checkpoint / FILE, record=RECORD)
    kept: dict[str, Any] = (state.get("stateful_callbacks") or {}).get("RunState", {}).get("attributes", {})
    return kept


def clean_logs(history: Any, notes: list[str]) -> list[dict[str, Any]]:
    """Return the training logs, one per step, in order. Where a resumed run went back, its later logs count."""
    logs: list[dict[str, Any]] = []
    replaced = 0
    for log in history if isinstance(history, list) else ():
        if not isinstance(log, dict) or "reward" not in log or number(log.get("step")) is None:
            continue
        while logs and logs[-1]["step"] > log["step"]:
            logs.pop()
            replaced += 1
        if logs and logs[-1]["step"] == log["step"]:
            replaced += 1
            logs[-1] = {**logs[-1], **log}
        else:
            logs.append(log)
    if replaced:
        notes.append(
            f"The log goes back in its steps, as after resuming: the later entry counts ({replaced} replaced)."
        )
    return logs
