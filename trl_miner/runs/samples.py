"""`samples.jsonl` of a benchmark's folder: one line per sample.

A line is appended when its sample is finished, so a killed run loses only the samples in flight.

{"problem": "aime24-3", "sample": 0, "seed": 123, "text": "...", "tokens": 57, "truncated": false, "limit": 8192}

`limit` is the token budget of the sample. Of two lines for one (problem, sample) the later counts.
"""

import errno
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from .files import parse_object, write_whole
from .places import fault
from .records import Sample

Key = tuple[str, int]
_RECORD = TypeAdapter(Sample)


def read_samples(path: str | Path) -> tuple[dict[Key, dict[str, Any]], list[str]]:
    """Read samples by (problem, sample), and sentences on what is wrong with the file."""
    samples: dict[Key, dict[str, Any]] = {}
    broken = []
    for _, sample in _parse_lines(path):
        if isinstance(sample, str):
            broken.append(sample)
        else:
            samples[sample["problem"], sample["sample"]] = sample
    return samples, _complaints(path, broken)


class SampleWriter:
    """Appends samples to a file, made if it is not there. It keeps the places of the samples, not the samples.

    It repairs the file on opening; `repairs` has sentences on what was repaired.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._places: dict[Key, tuple[int, int]] = {}  # begin and length of the line
        self._limits: dict[Key, int] = {}  # of those that were cut off
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        self._end = 0
        broken = self._scan()
        self.repairs = _complaints(self.path, broken)
        if broken or (self._end and os.pread(self._descriptor, 1, self._end - 1) != b"\n"):  # a cut last line
            self._rewrite(list(self._places))

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def read(self, key: Key) -> dict[str, Any]:
        """Return one sample."""
        begin, length = self._places[key]
        return parse_object(os.pread(self._descriptor, length, begin), _RECORD)

    def is_short(self, key: Key, limit: int) -> bool:
        """Return whether a sample was cut off under a smaller budget than `limit`, in tokens."""
        return self._limits.get(key, limit) < limit

    def append(self, sample: dict[str, Any]) -> None:
        """Add a sample, or replace the earlier one with its (problem, sample)."""
        line = (json.dumps(sample, ensure_ascii=False) + "\n").encode("utf-8", errors="replace")
        # One call, so that a kill leaves at most one broken line, which is dropped when the file is opened again.
        if os.write(self._descriptor, line) != len(line):
            raise OSError(
                errno.ENOSPC,
                "No space left for this sample: those before it are kept, and the same command resumes",
                str(self.path),
            )
        self._note(sample, len(line))

    def finish(self, problems: Sequence[str]) -> None:
        """Sort the lines by problem and sample, drop those that later lines replaced, and close the file."""
        rank = {problem: index for index, problem in enumerate(problems)}
        ordered = sorted(self._places, key=lambda key: (rank.get(key[0], len(rank)), key[1]))
        if sum(length for _, length in self._places.values()) < self._end or ordered != list(self._places):
            self._rewrite(ordered)
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _scan(self) -> list[str]:
        """Note the places of the samples, and return what is wrong with broken lines."""
        broken = []
        for length, sample in _parse_lines(self.path):
            if isinstance(sample, str):
                broken.append(sample)
                self._end += length
            else:
                self._note(sample, length)
        return broken

    def _note(self, sample: dict[str, Any], length: int) -> None:
        key = sample["problem"], sample["sample"]
        self._places[key] = self._end, length
        self._end += length
        self._limits.pop(key, None)
        if sample["truncated"]:
            self._limits[key] = sample.get("limit") or 0

    def _rewrite(self, order: Sequence[Key]) -> None:
        places = [self._places[key] for key in order]
        lines = (os.pread(self._descriptor, length, begin).rstrip(b"\n") + b"\n" for begin, length in places)
        write_whole(self.path, lines)
        self.close()
        self._places, self._limits, self._end = {}, {}, 0
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
        self._scan()


def _complaints(path: str | Path, broken: Sequence[str]) -> list[str]:
    if not broken:
        return []
    shown = "; ".join(broken[:3]) + ("; ..." if len(broken) > 3 else "")
    number = f"{len(broken)} broken line{'s' * (len(broken) > 1)}"
    return [f"{path}: {number} left out ({shown}). A killed process leaves lines that are cut off."]


def _parse_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield the length of each line, and its sample or what is wrong with it."""
    if problem := fault(Path(path)):
        raise ValueError(f"{path} must be a file of its folder: {problem}. Put the samples there, or sample again.")
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield len(line), parse_object(line, _RECORD)
            except ValueError as error:
                yield len(line), f"line {number}: {error}"
