"""The folder of `trl-miner eval`: how samples were drawn, the problems, the samples, and their
scores.

settings.json               how everything in the folder is sampled
BENCHMARK/benchmark.json    the benchmark and where it comes from
BENCHMARK/problems.jsonl    its problems, so that scoring needs no network
BENCHMARK/samples.jsonl     a line per sample, appended when it is finished: a killed run loses those in flight
scores.json                 the scores, from `trl-miner score`; scores.md shows them as tables

{"problem": "aime24-3", "sample": 0, "seed": 123, "text": "...", "tokens": 57, "truncated": false}

`truncated`: cut off at the limit of tokens. Of two lines for one (problem, sample) the later
counts.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ..common.redaction import redact
from . import records
from .files import parse_object, read_lines, read_object, write_json, write_whole

Key = tuple[str, int]
SETTINGS, SCORES, TABLES = "settings.json", "scores.json", "scores.md"
BENCHMARK, PROBLEMS, SAMPLES = "benchmark.json", "problems.jsonl", "samples.jsonl"
_SETTINGS, _BENCHMARK = TypeAdapter(records.Sampling), TypeAdapter(records.Benchmark)
_PROBLEM, _SAMPLE = TypeAdapter(records.Problem), TypeAdapter(records.Sample)
_SCORES = TypeAdapter(records.ScoresFile)
_ADVICE = "Give the --output of `trl-miner eval`, or sample into a new folder."


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write `settings.json`. If there is one, it must say the same, but for versions."""
    path, settings = folder / SETTINGS, redact(settings)  # the file has them so
    known: Mapping[str, Any] = read_settings(folder) if path.is_file() else settings
    for name in sorted({*known, *settings} - {"versions"}):
        before, now = known.get(name), settings.get(name)
        if before != now:
            raise ValueError(
                f"A folder holds samples of one kind: {path} has {name} {before!r}, got {now!r}."
                " Give the same, or another --output."
            )
    write_json(path, settings)


def read_settings(folder: Path) -> dict[str, Any]:
    """Read `settings.json`."""
    return read_object(folder / SETTINGS, _ADVICE, _SETTINGS)


def write_benchmark(
    folder: Path, about: Mapping[str, Any], problems: Iterable[Mapping[str, Any]]
) -> None:
    """Write `benchmark.json` and `problems.jsonl`. Raise ValueError if samples of other problems
    are there."""
    folder.mkdir(exist_ok=True)
    if (folder / BENCHMARK).is_file():
        known = read_benchmark(folder)
        if known["fingerprint"] != about["fingerprint"]:
            raise ValueError(
                f"{folder} must hold samples of one set of problems: it was begun with others"
                f" ({known['source']}). Give the same problems, or another --output."
            )
        about = {**about, "samples": max(about["samples"], known["samples"])}
    write_whole(folder / PROBLEMS, map(_line, problems))
    write_json(folder / BENCHMARK, dict(about), default=str)


def benchmark_folders(folder: Path) -> list[Path]:
    """Return the folders of the benchmarks, by name; none: it is no result folder, or nothing was
    sampled."""
    return sorted(path.parent for path in folder.glob(f"*/{BENCHMARK}"))


def read_benchmark(folder: Path) -> dict[str, Any]:
    """Read `benchmark.json` of a benchmark's folder."""
    return read_object(folder / BENCHMARK, _ADVICE, _BENCHMARK)


def read_problems(folder: Path) -> list[dict[str, Any]]:
    """Read `problems.jsonl` of a benchmark's folder."""
    problems = [problem for _, problem in read_lines(folder / PROBLEMS, _ADVICE, _PROBLEM)]
    if not problems or len({problem["id"] for problem in problems}) < len(problems):
        raise ValueError(
            f"{folder / PROBLEMS} must hold problems with different ids: got {len(problems)} lines."
            " Sample into a new folder."
        )
    return problems


def write_scores(folder: Path, scores: Mapping[str, Any], tables: str) -> None:
    """Write `scores.json`, and `scores.md`, which shows it as tables."""
    write_json(folder / SCORES, scores, indent=1, allow_nan=False)
    write_whole(folder / TABLES, tables)


def read_scores(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the benchmarks of `scores.json`, by name."""
    return dict(
        read_object(folder / SCORES, f"Run: trl-miner score {folder}", _SCORES)["benchmarks"]
    )


def read_samples(path: str | Path) -> tuple[dict[Key, dict[str, Any]], list[str]]:
    """Read samples by (problem, sample), and sentences on what is wrong with the file."""
    if not Path(path).is_file():  # a pipe would hang its reader
        raise FileNotFoundError(f"{path} must be a file of samples. Put it there, or sample again.")
    samples: dict[Key, dict[str, Any]] = {}
    broken = []
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                sample = parse_object(line, _SAMPLE)
            except ValueError as error:
                broken.append(f"line {number}: {error}")
            else:
                samples[sample["problem"], sample["sample"]] = sample
    what = "A killed process leaves lines that are cut off."
    return samples, (
        [f"{path}: {len(broken)} broken line(s) left out ({broken[0]}). {what}"] if broken else []
    )


class SampleWriter:
    """Appends samples to a file, made if it is not there. It keeps the keys of the samples, not the
    samples.

    It repairs the file on opening; `repairs` has sentences on what was repaired.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        samples, self.repairs = read_samples(path) if self.path.exists() else ({}, [])
        self._keys = {*samples}
        write_whole(self.path, map(_line, samples.values()))  # without a cut last line
        self._file = open(self.path, "ab", buffering=0)

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def append(self, sample: dict[str, Any]) -> None:
        """Add a sample, or replace the earlier one with its (problem, sample)."""
        line = _line(sample)
        # One call, so that a kill leaves at most one broken line, which is dropped when the file is
        # opened again.
        if self._file.write(line) != len(line):
            raise OSError(
                f"{self.path} took no more: the disk is full. The samples so far stay; the command"
                " resumes."
            )
        self._keys.add((sample["problem"], sample["sample"]))

    def finish(self, problems: Sequence[str]) -> None:
        """Sort the lines by problem and sample, drop those that later lines replaced, and close the
        file."""
        rank = {problem: index for index, problem in enumerate(problems)}
        samples, _ = read_samples(self.path)
        ordered = sorted(samples, key=lambda key: (rank.get(key[0], len(rank)), key[1]))
        write_whole(self.path, (_line(samples[key]) for key in ordered))
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _line(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8", errors="replace")
