"""What a checkpoint lacks of that which resuming needs: files that are missing, cut off, or of another step.

{"model.safetensors": 1234, "optimizer.pt": 2468, ...}     `files.json`: what it held when it was complete, in bytes

A checkpoint is moved to its place when it is complete, so that this finds what happened to it later. Checkpoints of
other trainers have no `files.json`: of them, model, optimizer and log are looked for.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from .files import read_optional, write_json
from .places import fault
from .records import Count
from .trainer_state import FILE as STATE
from .trainer_state import last_step

FILE = "files.json"
_RECORD = TypeAdapter(dict[str, Count])
_NEEDED = re.compile(r".*\.(safetensors|pt|pth|bin|distcp|metadata|index\.json)|adapter_config\.json|latest")
_NOT_NEEDED = re.compile(r"training_args\.bin|rollouts_\d+\.pt")  # nobody reads it; are generated again
_MODEL = re.compile(r"(.*safetensors|model.*\.bin|pytorch_model.*|global_step.*)(\.index\.json)?")
_OPTIMIZER = re.compile(r"optimizer(\.pt|\.bin|_\d+/)|global_step")  # the last is DeepSpeed's
_RANDOM = re.compile(r"rng_state(?:_(\d+))?\.pth")


@dataclass(frozen=True)
class Fault:
    """What a checkpoint lacks."""

    file: str
    reason: str
    is_optional: bool = False  # a run can go on from the model alone without this file

    def __str__(self) -> str:
        return f"{self.file} {self.reason}"


def write_files(folder: Path) -> None:
    """Write `files.json` of a checkpoint that is complete."""
    write_json(folder / FILE, {path.relative_to(folder).as_posix(): path.stat().st_size for path in _needed(folder)})


def find_faults(folder: Path) -> list[Fault]:
    """Return what a checkpoint lacks of that which resuming needs; empty: it is whole."""
    step = last_step(folder)
    if step is None:
        return [Fault(STATE, "is missing or damaged")]
    named = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    if named and int(named[1]) != step:
        return [Fault(STATE, f"is of step {step}")]
    sizes = read_optional(folder / FILE, [], _RECORD)
    faults = [found for name, size in sorted(sizes.items()) if (found := _compare(folder / name, name, size))]
    known = sizes.keys() or {path.relative_to(folder).as_posix() for path in _needed(folder)}
    if not any(map(_MODEL.match, known)):
        faults.append(Fault("model.safetensors", "is missing"))
    if not any(map(_OPTIMIZER.match, known)):
        faults.append(Fault("optimizer.pt", "is missing", is_optional=True))
    return faults


def made_by(folder: Path) -> int | None:
    """Return the number of processes that wrote a checkpoint; None: it is not known."""
    found = (_RANDOM.fullmatch(path.name) for path in folder.glob("rng_state*.pth"))
    return max((int(match[1] or 0) + 1 for match in found if match), default=None)


def has_optimizer(folder: Path) -> bool:
    """Return whether a checkpoint holds an optimizer's state, of whatever kind of training."""
    return any(_OPTIMIZER.match(path.relative_to(folder).as_posix()) for path in _needed(folder))


def _needed(folder: Path) -> Iterator[Path]:
    """The files of a checkpoint that resuming reads, but for its log."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not _NOT_NEEDED.fullmatch(path.name))
    return (path for path in paths if _NEEDED.fullmatch(path.name))


def _compare(path: Path, name: str, size: int) -> Fault | None:
    if not path.is_file():
        return Fault(name, "is missing", is_optional=not _MODEL.match(name) or "optim_states" in name)
    if problem := fault(path):
        return Fault(name, f"must not be read: {problem}")
    return Fault(name, "is cut off") if path.stat().st_size < size else None
