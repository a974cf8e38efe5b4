"""What a checkpoint lacks of that which resuming needs: files that are missing, cut off, or of another step.

A checkpoint is moved to its place when it is complete, so that this finds what happened to it later, and what other
trainers left. The headers of the weights and the archives of torch.save say how long they are.
"""

import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .files import read_object
from .places import fault
from .trainer_state import FILE as STATE
from .trainer_state import last_step

ADAPTER = "adapter_config.json"
_NEEDED = re.compile(r".*\.(safetensors|pt|pth|bin|distcp|metadata|index\.json)|adapter_config\.json|latest")
_UNUSED = {"training_args.bin"}  # nobody reads it when a run goes on
_MODEL = re.compile(r".*(safetensors|model.*\.bin|index\.json|adapter_config\.json)|pytorch_model_fsdp.*")
_OPTIMIZER = re.compile(r"optimizer(\.pt|\.bin|_\d+/)|global_step")  # the last is DeepSpeed's
_SHARD = re.compile(r"zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt$")  # DeepSpeed's
_RANDOM = re.compile(r"rng_state(?:_(\d+))?\.pth")


@dataclass(frozen=True)
class Fault:
    """What a checkpoint lacks."""

    file: str
    reason: str
    is_missing: bool = False  # else it is damaged
    is_of_model: bool = True  # else of the optimizer, the random states, the rollouts or the log

    @property
    def is_optional(self) -> bool:
        """Whether a run can go on from the model alone without this file."""
        return self.is_missing and not self.is_of_model and self.file != STATE

    def __str__(self) -> str:
        return f"{self.file} {self.reason}"


def find_faults(folder: Path) -> list[Fault]:
    """Return what a checkpoint lacks of that which resuming needs; empty: it is whole."""
    step = last_step(folder)
    if step is None:
        return [Fault(STATE, "is missing or damaged", is_missing=not (folder / STATE).is_file(), is_of_model=False)]
    named = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    if named and int(named[1]) != step:
        return [Fault(STATE, f"is of step {step}", is_of_model=False)]
    names = {path.relative_to(folder).as_posix() for path in needed_files(folder)}
    faults = [fault for name in sorted(names) if (fault := _look_at(folder / name, name))]
    if any(name.startswith("global_step") for name in names):
        faults += _missing_shards(folder, names)
    else:
        faults += _missing_weights(folder, names)
        states = {"optimizer.pt": has_optimizer(folder), "scheduler.pt": "scheduler.pt" in names}
        faults += _missing(name for name, is_there in states.items() if not is_there)
    return [*faults, *_missing_random_states(folder)]


def needed_files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint that resuming reads."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in _UNUSED)
    return [path for path in paths if path.name == STATE or _NEEDED.fullmatch(path.name)]


def made_by(folder: Path) -> int | None:
    """Return the number of processes that wrote a checkpoint; None: it is not known."""
    ranks = _ranks(folder)
    return max(ranks) + 1 if ranks else None


def has_optimizer(folder: Path) -> bool:
    """Return whether a checkpoint holds an optimizer's state, of whatever kind of training."""
    names = (path.relative_to(folder).as_posix() for path in needed_files(folder))
    return any(_OPTIMIZER.match(name) for name in names)


def _missing_weights(folder: Path, names: set[str]) -> list[Fault]:
    if not any(_MODEL.match(name) and not name.endswith("json") for name in names):
        name = "adapter_model.safetensors" if ADAPTER in names else "model.safetensors"
        return [Fault(name, "is missing", is_missing=True)]
    faults: list[Fault] = []
    for index in (name for name in names if "/" not in name and name.endswith(".index.json")):
        try:
            shards = set(map(str, read_object(folder / index)["weight_map"].values()))
        except (ValueError, KeyError, AttributeError):
            return [Fault(index, "is damaged")]
        faults += [Fault(name, "is missing", is_missing=True) for name in sorted(shards - names)]
    return faults


def _missing_shards(folder: Path, names: set[str]) -> list[Fault]:
    """DeepSpeed's optimizer is in a file of each process. Without one, it starts at zero silently."""
    found = {int(match[1]) for name in names if (match := _SHARD.search(name))}
    if not found or any("mp_rank_01" in name for name in names):  # with model parallelism, they are fewer
        return []
    missing = set(range(max(found | _ranks(folder)) + 1)) - found
    return _missing(f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in sorted(missing))


def _missing_random_states(folder: Path) -> list[Fault]:
    """A single process writes rng_state.pth, several rng_state_0.pth and so on."""
    ranks = _ranks(folder)
    if 0 in ranks and (folder / "rng_state.pth").is_file():
        return []
    if not ranks:
        return _missing(["rng_state.pth"])
    return _missing(f"rng_state_{rank}.pth" for rank in range(max(2, max(ranks) + 1)) if rank not in ranks)


def _missing(names: Iterable[str]) -> list[Fault]:
    """Return the fault of each file that is missing, none of which is of the model."""
    return [Fault(name, "is missing", is_missing=True, is_of_model=False) for name in names]


def _ranks(folder: Path) -> set[int]:
    """Return the processes whose random states are in a checkpoint."""
    found = (_RANDOM.fullmatch(path.name) for path in folder.glob("rng_state*.pth"))
    return {int(match[1] or 0) for match in found if match}


def _look_at(path: Path, name: str) -> Fault | None:
    """Return what is wrong with a file, as far as it tells by itself."""
    of_model = _MODEL.match(name) is not None
    if problem := fault(path):
        return Fault(name, f"must not be read: {problem}", is_of_model=of_model)
    try:
        if path.suffix == ".safetensors":
            is_whole = is_whole_safetensors(path)
        elif path.suffix in (".pt", ".pth", ".bin"):  # torch.save writes an archive, whose directory is at the end
            is_whole = zipfile.is_zipfile(path)
        else:
            is_whole = path.stat().st_size > 0
    except OSError:
        is_whole = False
    return None if is_whole else Fault(name, "is cut off", is_of_model=of_model)


def is_whole_safetensors(path: Path) -> bool:
    """Return whether a file is as long as its header says."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            return True
    except SafetensorError:
        return False
