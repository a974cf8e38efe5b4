"""A run folder as reports see it: `read_run` puts its files together.

Files may be unfinished, or hold anything where a number should be. What cannot be read is left out, with a note.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .checkpoints import list_checkpoints
from .compare_folder import RUN, run_folders
from .evaluation import AFTER, clean_scores, read_evaluation
from .evaluation import FILE as EVALUATION
from .files import number, read_optional
from .held_out import HeldOut, read_held_out
from .settings import DEFAULTS, clean_settings, current_names, read_options
from .trainer_state import FILE as STATE
from .trainer_state import clean_logs
from .training_record import RECORD


@dataclass(frozen=True)
class RunHistory:
    """One training run.

    Attributes:
        folder: The run folder.
        name: The name in reports.
        method: The name of the recipe, where `trl-miner compare` recorded it.
        seed: The seed; None: not recorded.
        settings: The recorded settings, each as text in one spelling; empty: none.
        logs: The training logs, one per logged optimizer step, steps ascending.
        scores: Scores on held-out problems by optimizer step, {0: {"pass@1": 0.5}}; 0 is before training.
        steps: Optimizer steps done.
        planned: Optimizer steps planned; None: not recorded.
        per_step: Optimizer steps per generation batch; None: not recorded.
        finished: Whether all planned steps are done, and the run was scored after training if it was scored at all.
        notes: Sentences for the reader of its curves.
        held_out: Right samples of each held-out problem; None: not recorded.
        versions: Versions of the packages, and "git", this package's commit; empty: not recorded.
    """

    folder: Path
    name: str
    logs: Sequence[Mapping[str, Any]]
    method: str | None = None
    seed: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[float, Mapping[str, float]] = field(default_factory=dict)
    steps: int = 0
    planned: int | None = None
    per_step: float | None = None
    finished: bool = True
    notes: Sequence[str] = ()
    held_out: HeldOut | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def values(self, key: str) -> list[tuple[float, float]]:
        """Return (optimizer step, value) of a metric by its key in the log; NaN where it is no finite number."""
        points = [(number(log["step"]), number(log[key])) for log in self.logs if key in log]
        return [(step, math.nan if value is None else value) for step, value in points if step is not None]

    def has(self, key: str) -> bool:
        """Return whether any log has a finite number under a key."""
        return any(number(log.get(key)) is not None for log in self.logs)

    def setting(self, name: str) -> str | None:
        """Return a setting by its name, or its default; None where neither is known, or no settings were recorded."""
        is_recorded = self.settings or self.method is not None
        return self.settings.get(name, DEFAULTS.get(name)) if is_recorded else None


def read_run(folder: str | Path) -> RunHistory:
    """Return the history of a run folder, finished or not.

    Raises:
        FileNotFoundError: Neither the folder nor a checkpoint in it holds a `trainer_state.json`.
        ValueError: None of those there can be read.
    """
    folder = Path(folder)
    state, notes = _read_state(folder)
    facts = read_optional(folder / RUN, notes)
    record = read_optional(folder / RECORD, notes)
    logs = clean_logs(state.get("log_history"), notes)
    steps = int(number(state.get("global_step")) or (logs[-1]["step"] if logs else 0))
    planned = number(state.get("max_steps"))
    evaluation = read_evaluation(folder, notes)
    finished = (not planned or steps >= planned) and (not evaluation or AFTER in evaluation)
    known = current_names(facts or record)
    seed = number(known.get("seed"))
    return RunHistory(
        folder=folder,
        name=folder.resolve().name,
        logs=logs,
        method=str(facts["method"]) if facts.get("method") is not None else None,
        seed=None if seed is None else int(seed),
        settings=_settings(facts, record),
        scores=clean_scores(evaluation, steps),
        steps=steps,
        planned=int(planned) if planned and planned > 0 else None,
        per_step=number(known.get("optimizer_steps_per_step")) or None,
        finished=finished,
        notes=notes,
        held_out=read_held_out(folder, notes),
        versions=_dict(record, "versions") | ({"git": record["git"]} if record.get("git") else {}),
    )


def _state_files(folder: Path) -> list[Path]:
    places = (folder, *reversed(list_checkpoints(folder)))
    return [path for place in places if (path := place / STATE).is_file()]


def has_state(folder: Path) -> bool:
    """Return whether a folder, which need not exist, is that of a run with a log."""
    return bool(_state_files(folder))


def no_state(folder: Path) -> str:
    """Return an error message: why a folder without a log cannot be read, and what to do."""
    if not folder.is_dir():
        return f"{folder} is no folder. Give the output_dir of a training run."
    begun = [name for name in (RUN, RECORD, EVALUATION) if (folder / name).is_file()]
    if begun or run_folders(folder):
        return (
            f"{folder} holds no {STATE}: the run has reached neither its end nor a checkpoint. Set save_steps to have "
            f"one sooner, or wait."
        )
    return (
        f"{folder} holds no {STATE}, nor does a checkpoint in it. Give the output_dir of a training run, the --output "
        f"of trl-miner compare, or that of trl-miner eval."
    )


def _read_state(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Read the state with the most steps: a resumed run may have left an older one in its folder."""
    files = _state_files(folder)
    if not files:
        raise FileNotFoundError(no_state(folder))
    notes: list[str] = []
    states = [state for path in files if (state := read_optional(path, notes))]
    if not states:
        raise ValueError(f"{files[0]} must be JSON with the log of a run: {notes[0]} Restore it from a checkpoint.")
    return max(states, key=lambda state: number(state.get("global_step")) or 0), notes


def _dict(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    return record[key] if isinstance(record.get(key), dict) else {}


def _settings(facts: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of `run.json`, which has the whole recipe, or else those of `training.json`."""
    if isinstance(facts.get("recipe"), dict):
        options = facts.get("options")
        return clean_settings({**facts["recipe"], **read_options(options if isinstance(options, list) else [])})
    names = {"base_model": "model_name_or_path", "dataset": "dataset_name", "held_out": "score_benchmark"}
    named = {name: record[key].get("name") for key, name in names.items() if isinstance(record.get(key), dict)}
    return clean_settings(_dict(record, "settings") | named)
