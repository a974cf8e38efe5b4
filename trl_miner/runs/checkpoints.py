"""`checkpoint-STEP/` of a run folder: each is whole or not there at all.

A checkpoint is written in `.unfinished/` and moved to its place by one rename when every process has written its part.
A run that is killed meanwhile leaves a folder that nothing resumes from; the next checkpoint clears it away.
transformers writes all files of a checkpoint but `rollouts_RANK.pt`, which `save_rollouts` adds.
"""

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .faults import Fault, find_faults, has_optimizer, made_by, write_files
from .trainer_state import FILE as STATE
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


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a checkpoint, damaged or not, and not what a kill has left of one."""
    return (folder / STATE).is_file()


def newest(run: str | Path) -> Path | None:
    """Return the newest checkpoint of a run folder that lacks nothing, or None."""
    return next((folder for folder in reversed(list_checkpoints(run)) if not find_faults(folder)), None)


def check_newest(run: Path, checkpoint: Path) -> None:
    """Raise ValueError if a run folder holds later checkpoints than one from which it goes on with other settings."""
    step = step_of(checkpoint) or last_step(checkpoint) or 0
    later = [folder.name for folder in list_checkpoints(run) if (step_of(folder) or 0) > step]
    if later:
        raise ValueError(
            f"A run that goes on with other settings must not leave later checkpoints beside its own: {run} holds "
            f"{', '.join(later)} of the earlier ones. Give another output_dir, or delete them."
        )


def agree_on(wanted: str | bool | None, output_dir: str | Path, *, only_model: bool = False) -> str | None:
    """Return the checkpoint that a run resumes from, the same on every process. Every process must call it.

    `wanted` is a folder; "latest" for the newest whole one, or none for a first start; True for the newest whole one;
    None or False for none. With `only_model` a checkpoint may lack optimizer and random states.
    """
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list, gather_object

    if wanted in (None, False, "false", "False"):
        return None
    place = PartialState()
    decided: list[Any] = [None, ""]
    if place.is_main_process:  # one decides: on other nodes a shared file system may not show the folder yet
        try:
            decided[0], missing = _choose(wanted, Path(output_dir), only_model)
            if decided[0] is not None:
                _warn_of_losses(decided[0], missing, place.num_processes)
        except ValueError as error:
            decided[1] = str(error)
    broadcast_object_list(decided)
    checkpoint, problem = decided
    if problem:
        raise ValueError(problem)
    if checkpoint is None:
        return None
    for rank, is_there in enumerate(gather_object([checkpoint.is_dir()])):
        if not is_there:
            raise ValueError(
                f"Every process must read the checkpoint: process {rank} does not find {checkpoint}. Put output_dir "
                f"on a file system that all nodes share, or copy it there."
            )
    return str(checkpoint)


def _choose(wanted: str | bool, output_dir: Path, only_model: bool) -> tuple[Path | None, list[Fault]]:
    """Return the checkpoint that `agree_on` is asked for, and what it may lack. Raise ValueError if there is none."""
    if wanted not in (True, "latest", "true", "True"):
        folder = Path(str(wanted))
        if not folder.is_dir():
            raise ValueError(f"A checkpoint must be a folder that every process can read: got {folder}. Give another.")
        faults, optional = _find(folder, only_model)
        if faults:
            raise ValueError(f"A checkpoint must be whole: of {folder}, {_listed(faults)}. {_advice(faults)}")
        return folder, optional
    lost: list[str] = []
    for folder in reversed(list_checkpoints(output_dir)):
        faults, optional = _find(folder, only_model)
        if not faults:
            return folder, optional
        logger.warning(f"{folder.name} is passed over: {_listed(faults)}.")
        if is_checkpoint(folder):  # else it was killed while it was written
            lost.append(f"{folder.name}: {_listed(faults)}. {_advice(faults)}")
    if wanted == "latest" and not lost:
        return None, []
    rule = f"resume_from_checkpoint={wanted} needs a whole checkpoint in output_dir"
    if lost:
        raise ValueError(f"{rule}: those in {output_dir} are not. {' '.join(lost)}")
    raise ValueError(f"{rule}: there is none in {output_dir}. 'latest' starts from scratch when there is none.")


def _find(folder: Path, only_model: bool) -> tuple[list[Fault], list[Fault]]:
    """Return what keeps a run from resuming, and what it can do without."""
    faults = find_faults(folder)
    optional = [fault for fault in faults if only_model and fault.is_optional]
    return [fault for fault in faults if fault not in optional], optional


def _listed(faults: list[Fault]) -> str:
    more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
    return "; ".join(map(str, faults[:3])) + more


def _advice(faults: list[Fault]) -> str:
    if all(fault.is_optional for fault in faults):
        return "Set save_only_model to go on without."
    return "Restore it, or delete it to start from scratch or from an earlier one."


def _warn_of_losses(folder: Path, missing: list[Fault], size: int) -> None:
    """Warn if a run that resumes from a checkpoint cannot go on exactly as if it had not been stopped."""
    made, reason = made_by(folder), ""
    if missing or not has_optimizer(folder):
        names = ", ".join(fault.file for fault in missing) or "optimizer and random states"
        reason = f"is resumed without {names} (save_only_model): what these hold starts from scratch"
    elif made is not None and made != size:
        reason = f"was made by {made} process(es), and there are {size}: their random states do not fit"
    if reason:
        logger.warning(f"{folder.name} {reason}, so that this run will differ from an uninterrupted one.")


def recover(output_dir: str | Path) -> None:
    """Put back a checkpoint that was moved aside for a newer one of the same step, if the newer one never came."""
    for old in Path(output_dir, UNFINISHED).glob(f"old-{PREFIX}*"):
        place = Path(output_dir, old.name.removeprefix("old-"))
        if not place.exists():
            os.replace(old, place)


def begin(output_dir: str | Path) -> None:
    """Make an empty folder to write a checkpoint in, without what a killed run has left there."""
    discard(output_dir)
    Path(output_dir, UNFINISHED).mkdir(parents=True, exist_ok=True)


def finish(output_dir: str | Path, name: str) -> None:
    """Move the checkpoint `name`, which is complete, to its place in the run folder, with a list of its files."""
    staging, place = Path(output_dir, UNFINISHED), Path(output_dir, name)
    write_files(staging / name)
    old = staging / f"old-{name}"
    if place.exists():
        os.replace(place, old)
    os.replace(staging / name, place)
    discard(output_dir)


def discard(output_dir: str | Path) -> None:
    """Delete an unfinished checkpoint."""
    shutil.rmtree(Path(output_dir, UNFINISHED), ignore_errors=True)


def save_rollouts(folder: Path, rank: int, size: int, batches: list[dict[str, Any]], **place: Any) -> None:
    """Save the generation batch that a checkpoint lies in the middle of: TRL's buffer, and the place in its cycle."""
    import torch

    torch.save({"size": size, "batches": batches, **place}, folder / ROLLOUTS.format(rank=rank))


def load_rollouts(
    folder: Path, rank: int, size: int, device: "torch.device", settings: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return what `save_rollouts` kept, on every process or on none. Every process must call it.

    It is None where the checkpoint lies at the end of a generation cycle, or where another number of processes or
    other `settings` made the rollouts. Then all generate again, as TRL does; a process that generated alone would wait
    for the others forever.
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
        if kept is not None and (why := _differences(kept, size, settings)):
            kept = None
    elif any(folder.glob(ROLLOUTS.format(rank="*"))):
        why = "it was made by another number of processes"
    everywhere = gather_object([(kept is not None, why)])
    if all(is_kept for is_kept, _ in everywhere):
        return kept
    reasons = [reason for _, reason in everywhere if reason]
    if reasons and rank == 0:
        logger.warning(
            f"{folder.name} lies inside a generation cycle, whose rollouts cannot be used: {reasons[0]}. They are "
            f"generated again, so that this run will differ from an uninterrupted one."
        )
    return None


def _differences(kept: Mapping[str, Any], size: int, settings: Mapping[str, str]) -> str:
    """Return why rollouts do not fit a run, or an empty text."""
    if kept["size"] != size:
        return f"it was made by {kept['size']} processes, and there are {size}"
    before = kept.get("settings", {})
    changed = [f"{name} was {before.get(name)}, is {now}" for name, now in settings.items() if before.get(name) != now]
    return "; ".join(changed)
