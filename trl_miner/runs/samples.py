"""`samples.jsonl` of a benchmark's folder: one line per sample.

A line is appended when its sample is finished, so a killed run loses only the samples in flight.

{"problem": "aime24-3", "sample": 0, "seed": 123, "text": "...", "tokens": 57, "truncated": false, "limit": 8192}

`limit` is the token budget of the sample. Of two lines for one (problem, sample) the later counts.
"""

import errno
import json
import os
from collections.abc import Sequence
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
    if problem := fault(Path(path)):
        raise ValueError(f"{path} must be a file of its folder: {problem}. Put the samples there, or sample again.")
    samples: dict[Key, dict[str, Any]] = {}
    broken = []
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                sample = parse_object(line, _RECORD)
            except ValueError as error:
                broken.append(f"line {number}: {error}")
            else:
                samples[sample["problem"], sample["sample"]] = sample
    return samples, _complaints(path, broken)


class SampleWriter:
    """Appends samples to a file, made if it is not there. It keeps the keys of the samples, not the samples.

    It repairs the file on opening; `repairs` has sentences on what was repaired.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        samples, self.repairs = read_samples(self.path)
        self._limits = {key: _limit(sample) for key, sample in samples.items()}
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        if self.repairs or (end and os.pread(self._descriptor, 1, end - 1) != b"\n"):  # a cut last line
            write_whole(self.path, map(_line, samples.values()))
            self.close()
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)

    def __contains__(self, key: Key) -> bool:
        return key in self._limits

    def __len__(self) -> int:
        return len(self._limits)

    def is_short(self, key: Key, limit: int) -> bool:
        """Return whether a sample was cut off under a smaller budget than `limit`, in tokens."""
        known = self._limits.get(key)
        return known is not None and known < limit

    def append(self, sample: dict[str, Any]) -> None:
        """Add a sample, or replace the earlier one with its (problem, sample)."""
        line = _line(sample)
        # One call, so that a kill leaves at most one broken line, which is dropped when the file is opened again.
        if os.write(self._descriptor, line) != len(line):
            raise OSError(
                errno.ENOSPC,
                "No space left for this sample: those before it are kept, and the same command resumes",
                str(self.path),
            )
        self._limits[sample["problem"], sample["sample"]] = _limit(sample)

    def finish(self, problems: Sequence[str]) -> None:
        """Sort the lines by problem and sample, drop those that later lines replaced, and close the file."""
        rank = {problem: index for index, problem in enumerate(problems)}
        samples, _ = read_samples(self.path)
        ordered = sorted(samples, key=lambda key: (rank.get(key[0], len(rank)), key[1]))
        write_whole(self.path, (_line(samples[key]) for key in ordered))
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _line(sample: dict[str, Any]) -> bytes:
    return (json.dumps(sample, ensure_ascii=False) + "\n").encode("utf-8", errors="replace")


def _limit(sample: dict[str, Any]) -> int | None:
    """Return the token budget under which a sample was cut off; None: it was not."""
    return (sample.get("limit") or 0) if sample["truncated"] else None


def _complaints(path: str | Path, broken: Sequence[str]) -> list[str]:
    if not broken:
        return []
    shown = "; ".join(broken[:3]) + ("; ..." if len(broken) > 3 else "")
    return [
        f"{path}: {len(broken)} broken line(s) left out ({shown}). A killed process leaves lines that are cut off."
    ]
