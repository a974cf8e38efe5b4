"""A run's folder: who may write there, which checkpoint it goes on from, and which are kept.

A checkpoint is transformers' own, with the trainer's state. It is whole if all files are as
`checksums.json` says, which is written last.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from accelerate import PartialState
from filelock import FileLock, Timeout
from transformers import TrainerCallback

from ..data.prompts import PromptForm, save_form
from .record import RECORD

LOCK, CHECKSUMS, RECIPE = ".lock", "checksums.json", "recipe.yaml"
LATEST = "latest"  # what `resume_from_checkpoint` may be beside a path
_STARTED = {RECORD, RECIPE, "held_out.json"}  # all that a run has written before its first step


def claim(folder: Path, *, resumes: bool, model: str | None) -> FileLock:
    """Return the lock of a folder for a new run, or for one that goes on. It is held until this
    process ends, however it ends.

    Raises:
        ValueError: A run is alive there or has used it, it is the model's own folder, or it holds
            something that no run wrote.
    """
    if model is not None and folder.exists() and folder.resolve() == Path(model).resolve():
        raise ValueError(
            f"output_dir {folder} is the model's own folder, whose weights the run would replace."
            " Choose another --output_dir."
        )
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"A run is alive in {folder}. Choose another --output_dir, or wait for its end."
        ) from None
    found = {path.name for path in folder.iterdir()} - {LOCK}
    if found and RECORD not in found:
        raise ValueError(
            f"output_dir {folder} holds {min(found)}, which no run wrote. Choose an empty folder."
        )
    if found - _STARTED and not resumes:
        raise ValueError(
            f"{folder} already contains a run. Resume it with --resume_from_checkpoint latest, or"
            " choose another --output_dir."
        )
    return lock


def choose_checkpoint(folder: Path, wanted: str | None) -> Path | None:
    """Return the checkpoint that `resume_from_checkpoint` means: a path, or for "latest" the newest
    whole one. None: the run begins anew.

    Raises:
        ValueError: A checkpoint that is named by its path is damaged, or there is none.
    """
    if not wanted:
        return None
    if wanted != LATEST:
        if fault := damage(Path(wanted)):
            raise ValueError(f"{wanted} cannot be resumed: {fault}.")
        return Path(wanted)
    newest = newest_checkpoint(folder)
    if newest is None:
        print(f"{folder} has no whole checkpoint: the run begins anew.", flush=True)
    return newest


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest whole checkpoint of a folder, and tell of each damaged one before it in a
    line; None: there is none."""
    for path in reversed(checkpoints(folder)):
        if not (fault := damage(path)):
            return path
        print(f"{path} is passed over: {fault}.", flush=True)
    return None


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder by step."""
    found = [path for path in folder.glob("checkpoint-*") if step_of(path) is not None]
    return sorted(found, key=lambda path: step_of(path) or 0)


def step_of(checkpoint: Path) -> int | None:
    """Return the optimizer step of a checkpoint; None: its name is no checkpoint's."""
    step = checkpoint.name.removeprefix("checkpoint-")
    return int(step) if step.isdecimal() and checkpoint.is_dir() else None


def damage(checkpoint: Path) -> str:
    """Return what is wrong with a checkpoint, with the file's name; empty: nothing.

    One of plain TRL has no checksums; it has to have transformers' own state, its last file.
    """
    path = checkpoint / CHECKSUMS
    if not path.is_file():
        is_ours = (checkpoint.parent / RECORD).exists()
        last = path if is_ours else checkpoint / "trainer_state.json"
        return "" if last.is_file() else f"{last.name}, which is written last, is missing"
    try:
        sums = json.loads(path.read_text("utf-8"))
        changed = {*sums.items()} - {*checksums(checkpoint).items()}
    except (ValueError, AttributeError):
        return f"{CHECKSUMS} is damaged"
    return f"{min(changed)[0]} is damaged" if changed else ""


def checksums(checkpoint: Path) -> dict[str, str]:
    """Return the BLAKE2b checksum of each file of a checkpoint, by its path in it."""
    sums = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.name != CHECKSUMS:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "blake2b").hexdigest()
            sums[path.relative_to(checkpoint).as_posix()] = digest
    return sums


class WholeCheckpoints(TrainerCallback):
    """Writes the checksums of a checkpoint once all processes have saved it, and only then deletes
    the oldest. It goes by the step, not by the clock, as transformers does.

    Add it last: what later callbacks write into a checkpoint has no checksum.

    Args:
        keep: How many checkpoints stay (`save_total_limit`), beside the best; None: all.
        form: The form of the run's prompts, which each checkpoint keeps.
    """

    def __init__(self, keep: int | None, form: PromptForm | None = None) -> None:
        self.keep, self.form = keep, form

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        PartialState().wait_for_everyone()
        if not state.is_world_process_zero:
            return
        saved = checkpoints(Path(args.output_dir))
        newest = Path(args.output_dir, f"checkpoint-{state.global_step}")
        save_form(newest, self.form)
        (newest / CHECKSUMS).write_text(json.dumps(checksums(newest)), "utf-8")
        best = state.best_model_checkpoint and Path(state.best_model_checkpoint).name
        for path in saved[: -self.keep] if self.keep else ():
            if path.name != best:
                shutil.rmtree(path)
