"""The folder of `trl-miner eval`: how samples were drawn, the problems, and their scores.

settings.json               how everything in the folder is sampled
BENCHMARK/benchmark.json    the benchmark and where it comes from
BENCHMARK/problems.jsonl    its problems, so that scoring needs no network
BENCHMARK/samples.jsonl     the samples: see `samples`
scores.json                 the scores, from `trl-miner score`; scores.md shows them as tables
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ..redaction import redact
from .files import read_lines, read_object, write_json, write_whole
from .locks import lock_folder
from .places import check_target
from .records import Benchmark, Problem, Sampling, ScoresFile

SETTINGS, SCORES, TABLES = "settings.json", "scores.json", "scores.md"
BENCHMARK, PROBLEMS, SAMPLES = "benchmark.json", "problems.jsonl", "samples.jsonl"
_SETTINGS, _BENCHMARK = TypeAdapter(Sampling), TypeAdapter(Benchmark)
_PROBLEM, _SCORES = TypeAdapter(Problem), TypeAdapter(ScoresFile)
_ADVICE = "Give the --output of `trl-miner eval`, or sample into a new folder."


def lock_eval(folder: Path) -> AbstractContextManager[Any]:
    """Hold the folder while sampling into it."""
    rule = "Only one process may sample into a folder: {folder} is in use by {holder}."
    return lock_folder(folder, f"{rule} Wait for it, or give another --output.")


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write `settings.json`. If there is one, it must say the same, but for versions and a smaller token budget."""
    path, settings = folder / SETTINGS, redact(settings)  # the file has them so
    known: Mapping[str, Any] = read_settings(folder) if path.is_file() else settings
    for name in sorted({*known, *settings} - {"versions"}):
        before, now = known.get(name), settings.get(name)
        is_larger = name == "max_tokens" and isinstance(before, int) and isinstance(now, int) and now > before
        if before != now and not is_larger:
            raise ValueError(
                f"A folder holds samples of one kind: {path} has {name} {before!r}, got {now!r}. Give the same, "
                f"or another --output."
            )
    write_json(path, settings)


def read_settings(folder: Path) -> dict[str, Any]:
    """Read `settings.json`."""
    settings: dict[str, Any] = read_object(folder / SETTINGS, _ADVICE, _SETTINGS)
    return settings


def write_benchmark(folder: Path, about: Mapping[str, Any], problems: Iterable[Mapping[str, Any]]) -> None:
    """Write `benchmark.json` and `problems.jsonl`. Raise ValueError if samples of other problems are there."""
    check_target(folder, folder.parent)
    folder.mkdir(exist_ok=True)
    if (folder / BENCHMARK).is_file():
        known = read_benchmark(folder)
        if known["fingerprint"] != about["fingerprint"]:
            raise ValueError(
                f"{folder} must hold samples of one set of problems: it was begun with others ({known['source']}). "
                f"Give the same problems, or another --output."
            )
        about = {**about, "samples": max(about["samples"], known["samples"])}
    lines = [json.dumps(problem, ensure_ascii=False) + "\n" for problem in problems]
    write_whole(folder / PROBLEMS, "".join(lines))
    write_json(folder / BENCHMARK, dict(about), default=str)


def benchmark_folders(folder: Path) -> list[Path]:
    """Return the folders of the benchmarks, by name; none: it is no result folder, or nothing was sampled."""
    return sorted(path.parent for path in folder.glob(f"*/{BENCHMARK}"))


def read_benchmark(folder: Path) -> dict[str, Any]:
    """Read `benchmark.json` of a benchmark's folder."""
    benchmark: dict[str, Any] = read_object(folder / BENCHMARK, _ADVICE, _BENCHMARK)
    return benchmark


def read_problems(folder: Path) -> list[dict[str, Any]]:
    """Read `problems.jsonl` of a benchmark's folder."""
    problems = [problem for _, problem in read_lines(folder / PROBLEMS, _ADVICE, _PROBLEM)]
    if not problems or len({problem["id"] for problem in problems}) < len(problems):
        raise ValueError(
            f"{folder / PROBLEMS} must hold problems with different ids: got {len(problems)} lines. Sample into a "
            f"new folder."
        )
    return problems


def write_scores(folder: Path, scores: Mapping[str, Any], tables: str) -> None:
    """Write `scores.json`, and `scores.md`, which shows it as tables."""
    write_json(folder / SCORES, scores, indent=1, allow_nan=False)
    write_whole(folder / TABLES, tables)


def read_scores(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the benchmarks of `scores.json`, by name."""
    return dict(read_object(folder / SCORES, f"Run: trl-miner score {folder}", _SCORES)["benchmarks"])
