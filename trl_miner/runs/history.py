"""A run folder as reports see it: `read_run` puts its files together.

Files may be unfinished, or hold anything where a number should be. What cannot be read is left out, with a note.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoints import list_checkpoints, step_of
from .files import read_optional
from .held_out import HeldOut, read_held_out
from .records import number as number
from .settings import clean_settings, read_options, sentences
from .trainer_state import FILE as STATE
from .trainer_state import RECORD as STATE_RECORD
from .trainer_state import columns_of
from .training_record import RECORD, TRAINING, run_folders

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class RunHistory:
    """One training run."""

    folder: Path
    name: str  # in reports
    # The training logs: by metric (n, 2) optimizer steps, ascending, and values; NaN is no finite number.
    columns: Mapping[str, "np.ndarray"]
    method: str | None = None  # the name of the recipe, where `trl-miner compare` recorded it
    seed: int | None = None  # None: not recorded
    settings: Mapping[str, str] = field(default_factory=dict)  # the recorded ones, in one spelling; empty: none
    # Scores on held-out problems by optimizer step, {0: {"pass@1": 0.5}}; 0 is before training.
    scores: Mapping[float, Mapping[str, float]] = field(default_factory=dict)
    steps: int = 0  # optimizer steps done
    planned: int | None = None  # None: not recorded
    per_step: float | None = None  # optimizer steps per generation batch; None: not recorded
    finished: bool = True  # all planned steps are done, and it was scored after training if it was scored at all
    notes: Sequence[str] = ()  # sentences for the reader of its curves
    since: int = 0  # optimizer steps before the settings became those of `settings`
    held_out: HeldOut | None = None  # None: not recorded
    versions: Mapping[str, str] = field(default_factory=dict)  # of the packages, and "git", this package's commit

    def points(self, key: str) -> "np.ndarray":
        """Return a column, which may be empty."""
        import numpy as np

        return self.columns.get(key, np.empty((0, 2)))

    def values(self, key: str) -> list[tuple[float, float]]:
        """Return `points` of a metric by its key, as (optimizer step, value)."""
        return [(step, value) for step, value in self.points(key).tolist()]


def read_run(folder: str | Path) -> RunHistory:
    """Return the history of a run folder, finished or not.

    Raises:
        FileNotFoundError: Neither the folder nor a checkpoint in it holds a `trainer_state.json`.
        ValueError: None of those there can be read.
    """
    folder = Path(folder)
    notes: list[str] = []
    state = _read_state(folder, notes)
    columns = columns_of(state.get("log_history") or ())
    record = read_optional(folder / RECORD, notes, TRAINING)
    compared = record.get("compared") or {}
    segments = record.get("segments") or []
    changed = sentences(segments)
    steps = int(state.get("global_step") or max((points[-1, 0] for points in columns.values()), default=0))
    planned = state.get("max_steps")
    held_out = read_held_out(folder, notes)
    known = record | compared
    return RunHistory(
        folder=folder,
        name=folder.resolve().name,
        columns=columns,
        method=compared.get("method"),
        seed=known.get("seed"),
        settings=_settings(compared, record, planned) | ({"segments": " ".join(changed)} if changed else {}),
        scores=held_out.by_step if held_out else {},
        steps=steps,
        planned=int(planned) if planned and planned > 0 else None,
        per_step=known.get("optimizer_steps_per_step"),
        finished=(not planned or steps >= planned) and (held_out is None or held_out.after is not None),
        notes=[*changed, *notes],
        since=segments[-1]["step"] if segments else 0,
        held_out=held_out,
        versions=(record.get("versions") or {}) | ({"git": record["git"]} if record.get("git") else {}),
    )


def has_state(folder: Path) -> bool:
    """Return whether a folder, which need not exist, is that of a run with a log."""
    return bool(_with_state(folder))


def _with_state(folder: Path) -> list[Path]:
    return [place for place in (folder, *reversed(list_checkpoints(folder))) if (place / STATE).is_file()]


def no_state(folder: Path) -> str:
    """Return an error message: why a folder without a log cannot be read, and what to do."""
    if not folder.is_dir():
        return f"{folder} is no folder. Give the output_dir of a training run."
    if (folder / RECORD).is_file() or run_folders(folder):
        return (
            f"{folder} holds no {STATE}: the run has reached neither its end nor a checkpoint. Set save_steps to have "
            f"one sooner, or wait."
        )
    return (
        f"{folder} holds no {STATE}, nor does a checkpoint in it. Give the output_dir of a training run, the --output "
        f"of trl-miner compare, or that of trl-miner eval."
    )


def _read_state(folder: Path, notes: list[str]) -> dict[str, Any]:
    """Read the state with the most steps: a resumed run may have left an older one in its folder."""
    places = _with_state(folder)
    if not places:
        raise FileNotFoundError(no_state(folder))
    furthest: dict[str, Any] = {}
    for place in places:  # the newest checkpoint first: each repeats the log of those before it
        if not furthest or (step_of(place) or 0) > (furthest.get("global_step") or 0):
            state = read_optional(place / STATE, notes, STATE_RECORD)
            if state and (not furthest or (state.get("global_step") or 0) > (furthest.get("global_step") or 0)):
                furthest = state
    if not furthest:
        raise ValueError(f"{places[0] / STATE} must be JSON with the log of a run: {notes[0]} Restore it.")
    return furthest


def _settings(compared: Mapping[str, Any], record: Mapping[str, Any], planned: float | None) -> dict[str, str]:
    """Return the settings of the whole recipe, where a comparison has noted it, or else those of the last segment."""
    if compared.get("recipe") is not None:
        return clean_settings({**compared["recipe"], **read_options(compared.get("options") or [])})
    names = {"base_model": "model_name_or_path", "dataset": "dataset_name", "held_out": "held_out"}
    named = {name: record[key]["name"] for key, name in names.items() if record.get(key)}
    found: dict[str, Any] = {}
    for segment in (record.get("segments") or [])[-1:]:
        found = {name: text for name, text in segment["settings"].items() if text != "null"} | {"max_steps": planned}
    return clean_settings(found | (record.get("settings") or {}) | named)
