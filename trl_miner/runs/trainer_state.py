"""`trainer_state.json` of a run folder and of each checkpoint: the training log, and how far the run got.

transformers writes it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from .files import read_object
from .records import State, number

if TYPE_CHECKING:
    import numpy as np

FILE = "trainer_state.json"
RECORD = TypeAdapter(State)


def read_state(folder: Path) -> dict[str, Any]:
    """Return what a run folder or checkpoint says of its training."""
    return read_object(folder / FILE, record=RECORD)


def last_step(folder: Path) -> int | None:
    """Return the optimizer steps done by a run folder or checkpoint; None: its state is missing or damaged."""
    try:
        step = read_state(folder).get("global_step")
    except (OSError, ValueError):
        return None
    return None if step is None else int(step)


def run_state(checkpoint: Path) -> dict[str, Any]:
    """Return what the trainer keeps of a run in a checkpoint; empty: the checkpoint is of another trainer."""
    kept = (read_state(checkpoint).get("stateful_callbacks") or {}).get("RunState", {})
    attributes: dict[str, Any] = kept.get("attributes", {})
    return attributes


def columns_of(logs: Iterable[Any]) -> dict[str, "np.ndarray"]:
    """Return training logs as columns: by metric (n, 2) optimizer steps, ascending, and values; NaN where a value is
    no finite number. Of logs of the same step the last value counts. Logs without a reward are no training logs."""
    import numpy as np

    by_metric: dict[str, dict[float, float | None]] = defaultdict(dict)
    for log in logs:
        if isinstance(log, Mapping) and "reward" in log and (step := number(log.get("step"))) is not None:
            for key, value in log.items():
                by_metric[key][step] = number(value)
    return {key: np.array(sorted(points.items()), dtype=float) for key, points in by_metric.items()}
