"""`runs.jsonl` of a comparison: all that reports and statistics read of each run, one run per line.

A line is about as long as a page of text, so the raw results of a study fit into a repository. It holds:

- `name`, `method`, `seed`, `settings` (as text, in one spelling), `versions`, `notes`;
- `steps`, `planned`, `per_step` (optimizer steps per generation batch), `finished`;
- `held_out`: the content of the run's `held_out.json`;
- `logs`: by metric a list with a number for each logged step, to 6 digits; null where that step has none.

Of paths it keeps the last name only.
"""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from ..redaction import redact, without_paths
from .files import read_lines, write_whole
from .held_out import HeldOutFile, held_out_of
from .history import RunHistory, read_run
from .records import AboveZero, Count, Number, Positive, Texts, record
from .training_record import run_folders

ENDING = ".jsonl"
NAME = f"runs{ENDING}"
_ADVICE = f"Restore it, or run trl-miner compare again, which writes OUTPUT/{NAME}."
_FIELDS = {
    "name": str,
    "method": str | None,
    "seed": Count | None,
    "settings": Texts,
    "versions": Texts,
    "notes": list[str],
    "steps": Count,
    "planned": Positive | None,
    "per_step": AboveZero | None,
    "finished": bool,
}
# The metrics that reports read: a test compares them with the charts.
METRICS = {
    *("reward", "step_time", "num_tokens", "entropy", "kl", "grad_norm"),
    *("completions/mean_length", "completions/clipped_ratio"),
}
METRIC_PREFIXES = ("rewards/", "miner/", "placebo/", "dose/", "groups/", "rollouts/")
_NOT_KEPT = {"output_dir", "run_name", "report_to", "config"}  # these settings say where, not what
_NO_NUMBER = "nan"
_LOGS = dict[str, list[Number | Literal["nan"] | None]]
_RECORD = TypeAdapter(record({**_FIELDS, "logs": _LOGS}, {"held_out": HeldOutFile}))


def is_runs_file(path: str | Path) -> bool:
    """Return whether a path is to be read with `read_runs`: it ends in .jsonl or .jsonl.gz, and is no folder."""
    return str(path).removesuffix(".gz").endswith(ENDING) and not Path(path).is_dir()


def write_runs(runs: Sequence[str | Path | RunHistory], path: str | Path) -> Path:
    """Write runs, which are histories or folders, into the file at a path that ends in .jsonl. Return the path."""
    path = Path(path)
    histories = [run if isinstance(run, RunHistory) else _history(run) for run in runs]
    lines = [json.dumps(_content(run), separators=(",", ":"), allow_nan=False) for run in histories]
    write_whole(path, "".join(f"{line}\n" for line in lines))
    return path


def collect_runs(output: str | Path) -> None:
    """Write `runs.jsonl` with all runs in the output of `trl-miner compare`, those of earlier calls included.

    Runs without a log, or with a damaged one, are left out. Without any run nothing is written."""
    output, runs = Path(output), []
    for folder in run_folders(output):
        with contextlib.suppress(FileNotFoundError, ValueError):
            runs.append(_history(folder))
    if runs:
        write_runs(runs, output / NAME)


def read_runs(path: str | Path) -> list[RunHistory]:
    """Return the runs of the file at a path. Their `folder` does not exist: it is the path followed by their name."""
    path, runs = Path(path), []
    for line, content in read_lines(path, _ADVICE, _RECORD):
        try:
            runs.append(_read_run(path, content))
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}. {_ADVICE}") from error
    if not runs:
        raise ValueError(f"{path} must hold at least one run: it is empty. Run trl-miner compare again.")
    return runs


def _history(folder: str | Path) -> RunHistory:
    history = read_run(folder)
    return replace(history, name="/".join(history.folder.resolve().parts[-2:]))


def _content(run: RunHistory) -> dict[str, Any]:
    settings = {name: value for name, value in run.settings.items() if name not in _NOT_KEPT}
    kept = sorted(key for key in run.columns if key in METRICS or key.startswith(METRIC_PREFIXES))
    logs = {}
    for key in ("step", *kept):
        known = dict(run.values(key))
        logs[key] = [_short(known[step]) if step in known else None for step, _ in run.values("step")]
    return {
        **without_paths(redact({name: getattr(run, name) for name in _FIELDS} | {"settings": settings})),
        "held_out": None if run.held_out is None else run.held_out.as_json(),
        "logs": logs,
    }


def _short(value: float) -> float | str:
    if not math.isfinite(value):
        return _NO_NUMBER
    return int(value) if value == int(value) else float(f"{value:.6g}")  # totals stay exact


def _read_run(path: Path, content: Mapping[str, Any]) -> RunHistory:
    import numpy as np

    logs: Mapping[str, Sequence[Any]] = content["logs"]
    if not all(isinstance(step, int | float) for step in logs.get("step", [None])):
        raise ValueError("logs must hold the step of each log")
    columns = {}
    for key, values in logs.items():
        pairs = zip(logs["step"], values, strict=True)
        columns[key] = np.array([(step, float(value)) for step, value in pairs if value is not None]).reshape(-1, 2)
    held_out = held_out_of(content.get("held_out") or {})
    fields: dict[str, Any] = {name: content[name] for name in _FIELDS}
    scores = held_out.by_step if held_out else {}
    folder = Path(f"{path}/{content['name']}")  # below a file, whatever the name is
    return RunHistory(folder, columns=columns, scores=scores, held_out=held_out, **fields)
