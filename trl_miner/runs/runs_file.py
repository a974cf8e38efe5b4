"""`runs.jsonl` of a comparison: all that reports and statistics read of each run, one run per line.

It is a few pages of text, so the raw results of a study fit into a repository. A line holds the
fields of a `RunHistory`, with `held_out` as `held_out.json` has it, and `logs` in the place of
`columns`: by metric a list with a number for each logged step, to 6 digits; null where that step
has none. Like `training.json`, it names no path.
"""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

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
    "steps": Count,
    "planned": Positive | None,
    "per_step": AboveZero | None,
    "finished": bool,
}
# The metrics that reports read: a test compares them with the charts.
METRICS = {
    *"""
    reward step_time num_tokens entropy kl grad_norm completions/mean_length
    completions/clipped_ratio
    """.split()
}
METRIC_PREFIXES = ("rewards/", "miner/", "placebo/", "dose/", "groups/", "rollouts/")
_LOGS = record({"step": list[Number]}, {})
_RECORD = TypeAdapter(record({**_FIELDS, "logs": _LOGS}, {"held_out": HeldOutFile}))


def is_runs_file(path: str | Path) -> bool:
    """Return whether a path is to be read with `read_runs`: it ends in .jsonl or .jsonl.gz, and is
    no folder."""
    return str(path).removesuffix(".gz").endswith(ENDING) and not Path(path).is_dir()


def write_runs(runs: Sequence[RunHistory], path: Path) -> None:
    """Write runs into the file at a path that ends in .jsonl."""
    lines = [json.dumps(_content(run), separators=(",", ":"), allow_nan=False) for run in runs]
    write_whole(path, "".join(f"{line}\n" for line in lines))


def collect_runs(output: Path) -> None:
    """Write `runs.jsonl` with all runs in the output of `trl-miner compare`, those of earlier calls
    included.

    Runs without a log, or with a damaged file, are left out. Without any run nothing is written."""
    runs = []
    for folder in run_folders(output):
        with contextlib.suppress(FileNotFoundError, ValueError):
            runs.append(replace(read_run(folder), name="/".join(folder.parts[-2:])))
    if runs:
        write_runs(runs, output / NAME)


def read_runs(path: str | Path) -> list[RunHistory]:
    """Return the runs of the file at a path. Their `folder` does not exist: it is the path followed
    by their name."""
    path, runs = Path(path), []
    for line, content in read_lines(path, _ADVICE, _RECORD):
        try:
            held_out, columns = (
                held_out_of(content.get("held_out") or {}),
                _columns(content["logs"]),
            )
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{path}, line {line}: {error}. {_ADVICE}") from error
        fields: dict[str, Any] = {name: content[name] for name in _FIELDS}
        scores = held_out.by_step if held_out else {}
        folder = Path(f"{path}/{content['name']}")  # below a file, whatever the name is
        runs.append(RunHistory(folder, columns=columns, scores=scores, held_out=held_out, **fields))
    if not runs:
        raise ValueError(
            f"{path} must hold at least one run: it is empty. Run trl-miner compare again."
        )
    return runs


def _content(run: RunHistory) -> dict[str, Any]:
    kept = sorted(key for key in run.columns if key in METRICS or key.startswith(METRIC_PREFIXES))
    steps = [step for step, _ in run.values("step")]
    columns = {key: dict(run.values(key)) for key in ("step", *kept)}
    return {
        **{name: getattr(run, name) for name in _FIELDS},
        "held_out": None if run.held_out is None else run.held_out.as_json(),
        "logs": {
            key: [_short(values.get(step, math.nan)) for step in steps]
            for key, values in columns.items()
        },
    }


def _short(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(f"{value:.6g}")  # totals stay exact


def _columns(logs: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    import numpy as np

    pairs = {
        key: [
            (step, value)
            for step, value in zip(logs["step"], values, strict=True)
            if value is not None
        ]
        for key, values in logs.items()
    }
    return {key: np.array(own, dtype=float).reshape(-1, 2) for key, own in pairs.items()}
