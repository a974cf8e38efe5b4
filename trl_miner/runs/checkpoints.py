"""Checkpoints that are whole or not there, and what they hold beside transformers' own files.

A checkpoint is written in `.unfinished/` and moved to its place by one rename when every process has written its part.
A run that is killed meanwhile leaves a folder that nothing resumes from and the next checkpoint clears away.
"""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object, send_to_device

logger = logging.getLogger(__name__)

UNFINISHED = ".unfinished"
_STATE = "trainer_state.json"


def newest(output_dir: str | Path) -> Path | None:
    """The newest whole checkpoint of a run folder, or None."""
    folders = {}
    for folder in Path(output_dir).glob("checkpoint-*"):
        step = folder.name.removeprefix("checkpoint-")
        if step.isdigit() and _is_whole(folder):
            folders[int(step)] = folder
    return folders[max(folders)] if folders else None


def _is_whole(folder: Path) -> bool:
    """transformers writes the state last, so that this also tells for a checkpoint that was not moved into place."""
    try:
        json.loads((folder / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def agree_on(wanted: str | bool | None, output_dir: str | Path) -> str | None:
    """The checkpoint that a run goes on from, the same on every process. Every process must call it.

    Args:
        wanted: A folder; "latest" for the newest whole one, or none for a first start; True for the newest whole one;
            None or False for none.
        output_dir: The run folder.

    Raises:
        ValueError: There is none, or a process cannot see it.
    """
    if wanted in (None, False, "false", "False"):
        return None
    is_search = wanted in (True, "latest", "true", "True")
    found = [newest(output_dir) if is_search else Path(str(wanted))]
    # One process decides: on several nodes the others may not see what it sees, or not yet.
    broadcast_object_list(found)
    checkpoint = found[0]
    if checkpoint is None:
        if wanted == "latest":
            return None
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
    for old in Path(output_dir, UNFINISHED).glob("old-checkpoint-*"):
        place = Path(output_dir, old.name.removeprefix("old-"))
        if not place.exists():
            os.replace(old, place)


def begin(output_dir: str | Path) -> None:
    """Make the folder to write a checkpoint in, empty of what a kill has left."""
    staging = Path(output_dir, UNFINISHED)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True, exist_ok=True)


def finish(output_dir: str | Path, name: str) -> None:
    """Move the checkpoint `name`, written in full, to its place in the run folder."""
    staging, place = Path(output_dir, UNFINISHED), Path(output_dir, name)
    old = staging / f"old-{name}"
    if place.exists():
        os.replace(place, old)
    os.replace(staging / name, place)
    shutil.rmtree(staging, ignore_errors=True)


def discard(output_dir: str | Path) -> None:
    """Free what an unfinished checkpoint holds."""
    shutil.rmtree(Path(output_dir, UNFINISHED), ignore_errors=True)


def save_rollouts(folder: Path, rank: int, size: int, batches: list[dict[str, Any]], **place: Any) -> None:
    """Keep the generation batch that a checkpoint lies in the middle of.

    Args:
        folder: The checkpoint.
        rank: Of this process, of `size`.
        batches: TRL's buffer: the slices of the generation batch, tensors and lists.
        place: Where in the generation cycle the run is.
    """
    torch.save({"size": size, "batches": batches, **place}, _rollouts_file(folder, rank))


def load_rollouts(folder: Path, rank: int, size: int, device: torch.device) -> dict[str, Any] | None:
    """What `save_rollouts` kept, or None: the checkpoint lies at the end of a cycle, or another number of processes
    made it (then the rollouts are generated anew, as TRL does). Every process must call it, and all get the same
    answer: one that generates alone would wait for the others for ever."""
    found: dict[str, Any] | None = None
    why = ""
    path = _rollouts_file(folder, rank)
    if path.is_file():
        try:
            # by way of the CPU: what accelerate calls cpu:0, torch.load does not know
            found = send_to_device(torch.load(path, map_location="cpu", weights_only=True), device)
        except Exception as error:  # torn by a full disk, or of a kind that cannot be read without pickle
            why = f"{path.name} cannot be read ({error})"
        made_by = size if found is None else found["size"]
        if made_by != size:
            found, why = None, f"it was made by {made_by} processes, and there are {size}"
    elif any(folder.glob("rollouts_*.pt")):
        why = "it was made by another number of processes"
    everywhere = gather_object([(found is not None, why)])
    if all(is_found for is_found, _ in everywhere):
        return found
    reasons = [reason for _, reason in everywhere if reason]
    if reasons and rank == 0:
        logger.warning(
            f"{folder.name} lies inside a generation cycle, whose rollouts cannot be used: {reasons[0]}. They are "
            f"generated anew, so that this run will differ from an uninterrupted one."
        )
    return None


def _rollouts_file(folder: Path, rank: int) -> Path:
    return folder / f"rollouts_{rank}.pt"
