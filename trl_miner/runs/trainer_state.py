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


def clean_logs(history: Any) -> list[dict[str, Any]]:
    """Return the training logs, one per step, in order."""
    logs: dict[float, dict[str, Any]] = {}
    for log in history if isinstance(history, list) else ():
        if isinstance(log, dict) and "reward" in log and number(log.get("step")) is not None:
            logs[log["step"]] = {**logs.get(log["step"], {}), **log}
    return [logs[step] for step in sorted(logs)]
