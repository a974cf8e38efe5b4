"""Whatever folders a report is given: runs, comparisons of runs, scored samples."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..runs.eval_folder import SETTINGS, benchmark_folders, read_scores, read_settings
from ..runs.history import STATE, RunHistory, has_state, no_state, read_run
from ..runs.runs_file import is_runs_file, read_runs
from ..runs.training_record import run_folders


@dataclass(frozen=True)
class EvalResult:
    """A scored result folder of `trl-miner eval`."""

    folder: Path
    name: str  # of its model
    settings: Mapping[str, Any]
    benchmarks: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ReportInputs:
    """What the folders of a report hold together."""

    runs: Sequence[RunHistory]
    results: Sequence[EvalResult]
    notes: Sequence[str] = ()


def read_result(folder: str | Path) -> EvalResult:
    """Read a scored result folder of `trl-miner eval`."""
    folder = Path(folder)
    benchmarks, settings = read_scores(folder), read_settings(folder)
    model = settings.get("adapter") or settings.get("model")
    name = "/".join(Path(str(model)).parts[-2:]) if model else folder.resolve().name
    return EvalResult(folder, name, settings, benchmarks)


def read_material(folders: Sequence[str | Path]) -> ReportInputs:
    """Read runs, outputs of `trl-miner compare` or their `runs.jsonl`, and result folders of `trl-miner eval`.

    The names of the runs differ. Raises FileNotFoundError for a folder that is none of these or lacks a file.
    """
    if not folders:
        raise ValueError("A report needs at least one folder: got none. Give the output_dir of a training run.")
    runs: list[RunHistory] = []
    results, notes = [], []
    for folder in dict.fromkeys(Path(folder) for folder in folders):  # twice the same is once
        if is_runs_file(folder):
            runs += read_runs(folder)
        elif has_state(folder):
            runs.append(read_run(folder))
        elif compared := run_folders(folder):
            missing = [path for path in compared if not has_state(path)]
            notes += [f"{path} is left out: it has no {STATE} yet." for path in missing]
            own = [read_run(path) for path in compared if path not in missing]
            if not own:
                raise FileNotFoundError(no_state(folder))
            runs += [replace(run, name="/".join(run.folder.parts[-2:])) for run in own]
        elif (folder / SETTINGS).is_file() or benchmark_folders(folder):
            results.append(read_result(folder))
        else:
            raise FileNotFoundError(no_state(folder))
    return ReportInputs(tell_apart(runs), results, notes)


def tell_apart(runs: Sequence[RunHistory]) -> list[RunHistory]:
    """Put the folders above in front of equal names until they differ, and number those of one folder."""
    names, folders = [run.name for run in runs], [run.folder.resolve() for run in runs]
    for depth in range(2, 12):
        clashing = Counter(name for name, _ in set(zip(names, folders, strict=True)))
        names = [
            "/".join(folder.parts[-depth:]) if clashing[name] > 1 else name
            for name, folder in zip(names, folders, strict=True)
        ]
    counts = [names[: at + 1].count(name) for at, name in enumerate(names)]
    names = [name if count == 1 else f"{name} ({count})" for name, count in zip(names, counts, strict=True)]
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]
