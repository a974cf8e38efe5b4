"""`checkpoint-STEP/` of a run folder: each is whole or not there at all.

A checkpoint is written in `.unfinished/` and moved to its place by one rename when every process has written its part.
A run that is killed meanwhile leaves a folder that nothing resumes from; the next checkpoint clears it away.
transformers writes all files of a checkpoint but `rollouts_RANK.pt`, which `save_rollouts` adds to it.
"""

import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .trainer_state import last_step

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

PREFIX = "checkpoint-"
UNFINISHED = ".unfinished"
ROLLOUTS = "rollouts_{rank}.pt"


def step_of(folder: Path) -> int | None:
    """Return the optimizer step in a checkpoint's name; None: the folder is no checkpoint."""
    step = folder.name.removeprefix(PREFIX)
    return int(step) if step.isdigit() and folder.name.startswith(PREFIX) else None


def list_checkpoints(run: str | Path) -> list[Path]:
    """Return the checkpoints of a run folder, damaged ones included, oldest first."""
    steps = {step: folder for folder in Path(run).glob(f"{PREFIX}*") if (step := step_of(folder)) is not None}
    return [steps[step] for step in sorted(steps)]


def whole_checkpoints(run: str | Path) -> list[Path]:
    """Return the whole checkpoints of a run folder, oldest first."""
    # transformers writes the state last, so a checkpoint whose state can be read is whole, even if an earlier version
    # wrote it where it lies.
    return [folder for folder in list_checkpoints(run) if last_step(folder) is not None]


def newest(run: str | Path) -> Path | None:
    """Return the newest whole checkpoint of a run folder, or None."""
    return next(reversed(whole_checkpoints(run)), None)


def agree_on(wanted: str | bool | None, output_dir: str | Path) -> str | None:
    """Return the checkpoint that a run resumes from, the same on every process. Every process must call it.

    `wanted` is a folder; "latest" for the newest whole one, or none for a first start; True for the newest whole one;
    None or False for none.
    """
    from accelerate.utils import broadcast_object_list, gather_object

    if wanted in (None, False, "false", "False"):
        return None
    is_search = wanted in (True, "latest", "true", "True")
    chosen = [newest(output_dir) if is_search else Path(str(wanted))]
    # One process decides: on other nodes a shared file system may not show the folder yet.
    broadcast_object_list(chosen)
    (checkpoint,) = chosen
    if checkpoint is None and wanted == "latest":
        return None
    if checkpoint is None:
        raise ValueError(
            f"resume_from_checkpoint={wanted} needs a whole checkpoint in output_dir: there is none in {output_dir}. "
            f"'latest' starts anew when there is none."
        )
    blind = [rank for rank, sees in enumerate(gather_object([checkpoint.is_dir()])) if not sees]
    if blind:
        raise ValueError(
            f"A checkpoint must be a folder that every process can read: {checkpoint} is none for process(es) "
            f"{', '.join(map(str, blind))}. Put output_dir on a file system that all nodes share, or copy it there."
        )
    return str(checkpoint)


def recover(output_dir: str | Path) -> None:
    """Put back a checkpoint that was moved aside for a newer one of the same step, if the newer one never came."""
    for old in Path(output_dir, UNFINISHED).glob(f"old-{PREFIX}*"):
        place = Path(output_dir, old.name.removeprefix("old-"))
        if not place.exists():
            os.replace(old, place)


def begin(output_dir: str | Path) -> None:
    """Make an empty folder to write a checkpoint in, without what a killed run has left there."""
    staging = Path(output_dir, UNFINISHED)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True, exist_ok=True)


def finish(output_dir: str | Path, name: str) -> None:
    """Move the complete checkpoint `name` to its place in the run folder."""
    staging, place = Path(output_dir, UNFINISHED), Path(output_dir, name)
    old = staging / f"old-{name}"
    if place.exists():
        os.replace(place, old)
    os.replace(staging / name, place)
    shutil.rmtree(staging, ignore_errors=True)


def discard(output_dir: str | Path) -> None:
    """Delete an unfinished checkpoint."""
    shutil.rmtree(Path(output_dir, UNFINISHED), ignore_errors=True)


def save_rollouts(folder: Path, rank: int, size: int, batches: list[dict[str, Any]], **place: Any) -> None:
    """Save the generation batch that a checkpoint lies in the middle of: TRL's buffer, and the place in its cycle."""
    import torch

    torch.save({"size": size, "batches": batches, **place}, folder / ROLLOUTS.format(rank=rank))


def load_rollouts(folder: Path, rank: int, size: int, device: "torch.device") -> dict[str, Any] | None:
    """Return what `save_rollouts` kept, on every process or on none. Every process must call it.

    It is None where the checkpoint lies at the end of a generation cycle, or another number of processes wrote it.
    Then all generate anew, as TRL does; a process that generated alone would wait for the others forever.
    """
    import torch
    from accelerate.utils import gather_object, send_to_device

    kept: dict[str, Any] | None = None
    why = ""
    path = folder / ROLLOUTS.format(rank=rank)
    if path.is_file():
        try:
            # through the CPU: torch.load does not know accelerate's cpu:0
            kept = send_to_device(torch.load(path, map_location="cpu", weights_only=True), device)
        except Exception as error:  # torn by a full disk, or of a kind that cannot be read without pickle
            why = f"{path.name} cannot be read ({error})"
        made_by = size if kept is None else kept["size"]
        if made_by != size:
            kept, why = None, f"it was made by {made_by} processes, and there are {size}"
    elif any(folder.glob(ROLLOUTS.format(rank="*"))):
        why = "it was made by another number of processes"
    everywhere = gather_object([(kept is not None, why)])
    if all(is_kept for is_kept, _ in everywhere):
        return kept
    reasons = [reason for _, reason in everywhere if reason]
    if reasons and rank == 0:
        logger.warning(
            f"{folder.name} lies inside a generation cycle, whose rollouts cannot be used: {reasons[0]}. They are "
            f"generated anew, so that this run will differ from an uninterrupted one."
        )
    return None
