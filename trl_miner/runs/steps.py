"""`.steps.json` of a run that `trl-miner compare` has started: how far it is. It is gone once the run has ended.

{"step": 12, "of": 150}     optimizer steps done and planned
"""

import contextlib
from pathlib import Path

from pydantic import TypeAdapter

from .files import read_object, write_json
from .records import Steps

FILE = ".steps.json"
_RECORD = TypeAdapter(Steps)


def write_steps(run: Path, step: int, of: int) -> None:
    """Write how far a run is. A full disk must not end a run for this file."""
    with contextlib.suppress(OSError):
        write_json(run / FILE, {"step": step, "of": of})


def read_steps(run: Path) -> tuple[int, int] | None:
    """Return the optimizer steps done and planned; None: not known."""
    try:
        steps = read_object(run / FILE, record=_RECORD)
    except (OSError, ValueError):
        return None
    return steps["step"], steps["of"]


def forget_steps(run: Path) -> None:
    """Remove the file, perhaps one that a killed run has left."""
    (run / FILE).unlink(missing_ok=True)
