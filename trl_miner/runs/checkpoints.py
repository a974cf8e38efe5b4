"""`checkpoint-STEP/` of a run folder, and which of them a run resumes from.

{"model.safetensors": 1234, "optimizer.pt": 2468, ...}     `files.json`: the files of the checkpoint, in bytes

transformers writes a checkpoint, and `save_rollouts` adds what it lacks. `files.json` comes last,
when every process has written its part. A run resumes only from a checkpoint that has it, and all
files that it names.
"""

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from .files import read_object, read_optional, write_json
from .records import Count, State

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

PREFIX = "checkpoint-"
# of a run folder and of each checkpoint: the log, and how far the run got
STATE = "trainer_state.json"
FILES = "files.json"
ROLLOUTS = "rollouts_{rank}.pt"
_NOT_NEEDED = {FILES, "training_args.bin", "README.md"}  # nobody reads them, and no push has them
_SIZES, _STATE = TypeAdapter(dict[str, Count]), TypeAdapter(State)
_NOT_NAMED = (None, False, "false", "False")
_NEWEST = (True, "latest", "true", "True")


def step_of(folder: Path) -> int | None:
    """Return the optimizer step in a checkpoint's name; None: the folder is no checkpoint."""
    step = folder.name.removeprefix(PREFIX)
    return int(step) if step.isdigit() and folder.name.startswith(PREFIX) else None


def list_checkpoints(run: str | Path) -> list[Path]:
    """Return the checkpoints of a run folder, damaged ones included, oldest first."""
    steps = {
        step: folder
        for folder in Path(run).glob(f"{PREFIX}*")
        if (step := step_of(folder)) is not None
    }
    return [steps[step] for step in sorted(steps)]


def last_step(folder: Path) -> int | None:
    """Return the optimizer steps done by a run folder or checkpoint; None: its state is missing or
    damaged."""
    try:
        step = read_object(folder / STATE, record=_STATE).get("global_step")
    except (OSError, ValueError):
        return None
    return None if step is None else int(step)


def begin(folder: Path) -> None:
    """Make room for a checkpoint that is about to be written: one of the same step, if there is
    one, goes."""
    (folder / FILES).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def finish(folder: Path) -> None:
    """Mark a checkpoint as whole, once every process has written its part."""
    paths = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name not in _NOT_NEEDED
    )
    write_json(
        folder / FILES, {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    )


def find_fault(folder: Path) -> str:
    """Return why a checkpoint is not whole, as a phrase; empty: it is."""
    if not folder.is_dir():
        return "there is no such folder"
    try:
        sizes: dict[str, int] = read_optional(folder / FILES, _SIZES)
    except ValueError:
        sizes = {}
    if not sizes:
        return f"{FILES} is missing: it was not written to its end, or by another trainer"
    if last_step(folder) is None:
        return f"{STATE} is missing or damaged"
    for name, size in sizes.items():
        # of another node's file, a network file system may first have told an earlier size
        path = folder / name
        if not path.is_file() or path.stat().st_size < size:
            return f"{name} is missing or cut off"
    return ""


def newest(run: str | Path) -> Path | None:
    """Return the newest whole checkpoint of a run folder, or None."""
    return next(
        (folder for folder in reversed(list_checkpoints(run)) if not find_fault(folder)), None
    )


def choose(wanted: str | bool | None, output_dir: Path) -> Path | None:
    """Return the checkpoint that a run resumes from. Raise ValueError if there is none.

    `wanted` is a folder; "latest" for the newest whole one, or none for a first start; True for the
    newest whole one; None or False for none.
    """
    if wanted in _NOT_NAMED:
        return None
    is_named, lost = wanted not in _NEWEST, []
    for folder in [Path(str(wanted))] if is_named else reversed(list_checkpoints(output_dir)):
        if not (fault := find_fault(folder)):
            if any(folder.glob("rng_state*.pth")):
                return folder
            fault = (
                "it holds the model alone (save_only_model). Start a run from it: give it as"
                " model_name_or_path"
            )
        if is_named:
            raise ValueError(f"A checkpoint must be whole: of {folder}, {fault}.")
        logger.warning(f"{folder.name} is passed over: {fault}.")
        if (folder / FILES).is_file():  # else it was killed while it was written
            lost.append(f"{folder.name}: {fault}.")
    if wanted == "latest" and not lost:
        return None
    why = (
        f"those in it are not. {' '.join(lost)} Restore one, or delete them all"
        if lost
        else "there is none"
    )
    raise ValueError(
        f"resume_from_checkpoint={wanted} needs a whole checkpoint in {output_dir}: {why}."
    )


def save_rollouts(
    folder: Path, rank: int, layout: list[int], batches: list[dict[str, Any]], micro_step: int
) -> None:
    """Save the generation batch that a checkpoint lies in the middle of: TRL's buffer, and the
    place in its cycle.

    `layout` is all that a process's buffer depends on besides the settings that a resume compares.
    """
    import torch

    kept = {"layout": layout, "batches": batches, "micro_step": micro_step}
    torch.save(kept, folder / ROLLOUTS.format(rank=rank))


def load_rollouts(
    folder: Path, rank: int, layout: list[int], device: "torch.device"
) -> dict[str, Any] | None:
    """Return what `save_rollouts` kept, on every process or on none. Every process must call it.

    It is None where the checkpoint lies at the end of a generation cycle, and where the rollouts
    have another layout. Then all generate again, as TRL does; a process that generated alone would
    wait for the others forever.
    """
    import torch
    from accelerate.utils import gather_object, send_to_device

    path, kept = folder / ROLLOUTS.format(rank=rank), None
    if path.is_file():  # through the CPU: torch.load does not know accelerate's cpu:0
        kept = send_to_device(torch.load(path, map_location="cpu", weights_only=True), device)
    if all(gather_object([kept is not None and kept["layout"] == layout])):
        return kept
    if rank == 0 and any(folder.glob(ROLLOUTS.format(rank="*"))):
        logger.warning(
            f"{folder.name} lies inside a generation cycle, whose rollouts were made with other"
            " batches or processes. They are generated again, so that this run will differ from an"
            " uninterrupted one."
        )
    return None
