"""`trainer_state.json` of a run folder and of each checkpoint: the training log, and how far the run got.

transformers writes it, as the last file of a checkpoint.
"""

from pathlib import Path
from typing import Any

from .files import read_object
from .shapes import COUNT, LIST, NUMBER, Maybe, Shape, number

FILE = "trainer_state.json"
SHAPE = {"global_step": Maybe(NUMBER), "max_steps": Maybe(NUMBER), "log_history": Maybe(LIST)}
_PLACE = ("stateful_callbacks", "RunState", "attributes", "prompts")  # of what the trainer's `RunState` counts
_RUN_STATE: Shape = {"batches": COUNT}
for _name in reversed(_PLACE):
    _RUN_STATE = {_name: Maybe(_RUN_STATE)}


def last_step(folder: Path) -> int | None:
    """Return the optimizer steps done by a run folder or checkpoint; None: its state is missing or damaged."""
    return _count(folder, "global_step")


def planned_steps(folder: Path) -> int | None:
    """Return the optimizer steps that the run of a checkpoint was to make; None: its state is missing or damaged."""
    return _count(folder, "max_steps")


def _count(folder: Path, name: str) -> int | None:
    try:
        step = number(read_object(folder / FILE).get(name))
    except (OSError, ValueError):
        return None
    return None if step is None else int(step)


def batches_before(checkpoint: Path) -> int:
    """Return the generation batches of a checkpoint's run so far. Raise ValueError if its state is damaged."""
    state = read_object(checkpoint / FILE, shape=_RUN_STATE)
    for name in _PLACE:
        state = state.get(name) or {}
    return int(state.get("batches", 0))


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
