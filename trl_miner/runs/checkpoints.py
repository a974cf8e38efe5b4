"""`checkpoint-STEP/` of a run folder, and which of them a run resumes from.

{"model.safetensors": {"bytes": 1234, "checksum": "6dc2..."}, ...}     `files.json`

transformers writes a checkpoint, and the trainer adds what it lacks. `files.json` comes last,
when every process has written its part and all of it is on the disk. A run resumes only from a
checkpoint that has it, and all files that it names, as they were.
"""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from .checksums import Piece, digests_of, joined, pieces_of, sync
from .files import read_object, read_optional, write_json
from .records import Contents, State

logger = logging.getLogger(__name__)

PREFIX = "checkpoint-"
# of a run folder and of each checkpoint: the log, and how far the run got
STATE = "trainer_state.json"
FILES = "files.json"
_NOT_NEEDED = {FILES, "training_args.bin", "README.md"}  # nobody reads them, and no push has them
_CONTENTS: TypeAdapter[Any] = TypeAdapter(dict[str, Contents])
_STATE = TypeAdapter(State)
_MODEL_ALONE = (
    "it holds the model alone (save_only_model). Start a run from it: give it as model_name_or_path"
)
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


def sizes_of(folder: Path) -> dict[str, int]:
    """Return the files of a checkpoint that a resume needs, with their sizes in bytes."""
    paths = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name not in _NOT_NEEDED
    )
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def bring_to_disk(folder: Path) -> None:
    """Wait until what the processes of this machine have written of a checkpoint is on the disk."""
    sync([folder, *folder.rglob("*")])


def finish(
    folder: Path,
    sizes: Mapping[str, int] | None = None,
    digests: Mapping[Piece, bytes] | None = None,
) -> None:
    """Mark a checkpoint as whole, once every process has written its part and it is on the disk.

    `sizes` are those of `sizes_of`; `digests` what `digests_of` has read so far: the rest is read
    here.
    """
    sizes, digests = sizes_of(folder) if sizes is None else sizes, dict(digests or {})
    digests |= digests_of(folder, [piece for piece in pieces_of(sizes) if piece not in digests])
    checksums = joined(digests)
    contents = {name: {"bytes": size, "checksum": checksums[name]} for name, size in sizes.items()}
    write_json(folder / FILES, contents)
    sync([folder, folder.parent])


def find_fault(folder: Path) -> str:
    """Return why a checkpoint is not whole, as a phrase; empty: all files are there.

    What is in them is `find_damage`'s, which reads them.
    """
    if not folder.is_dir():
        return "there is no such folder"
    try:
        contents = read_optional(folder / FILES, _CONTENTS)
    except ValueError:
        return f"{FILES} is damaged"
    if not contents:
        return f"{FILES} is missing: it was not written to its end, or by another trainer"
    if (step := last_step(folder)) is None:
        return f"{STATE} is missing or damaged"
    # it would be taken for the newest one again and again
    if step_of(folder) not in (step, None):
        return f"its name is another's: it is of step {step}. Name it {PREFIX}{step} again"
    for name, about in contents.items():
        # of another node's file, a network file system may first have told an earlier size
        path = folder / name
        if not path.is_file() or path.stat().st_size < about["bytes"]:
            return f"{name} is missing or cut off"
    return ""


def find_damage(folder: Path) -> str:
    """Return why a checkpoint is not whole, or which file has changed since it was written, as a
    phrase; empty: nothing. It reads all files, as a resume does."""
    try:
        if fault := find_fault(folder):
            return fault
        contents = read_optional(folder / FILES, _CONTENTS)
        sizes = {name: about["bytes"] for name, about in contents.items()}
        checksums = joined(digests_of(folder, pieces_of(sizes)))
    except OSError as error:
        return f"{Path(error.filename or folder).name} cannot be read ({error.strerror})"
    changed = [name for name in contents if checksums[name] != contents[name]["checksum"]]
    return f"{', '.join(changed)} has changed since it was written" if changed else ""


def newest(run: str | Path) -> Path | None:
    """Return the newest whole checkpoint of a run folder, or None."""
    return next(
        (folder for folder in reversed(list_checkpoints(run)) if not find_fault(folder)), None
    )


def choose(wanted: str | bool | None, output_dir: Path) -> Path | None:
    """Return the checkpoint that a run resumes from. Raise ValueError if there is none.

    `wanted` is a folder; "latest" for the newest whole one, or none for a first start; True for the
    newest whole one; None or False for none. All files of the checkpoint are read.
    """
    if wanted in _NOT_NAMED:
        return None
    if wanted not in _NEWEST:
        folder = Path(str(wanted))
        if fault := _why_not(folder):
            way = "" if fault == _MODEL_ALONE else _way(folder)
            if not folder.exists():
                raise ValueError(f"No checkpoint at {folder}: the folder does not exist.{way}")
            raise ValueError(f"The checkpoint {folder} is not complete: {fault}.{way}")
        return folder
    lost = []
    for folder in reversed(list_checkpoints(output_dir)):
        if not (fault := _why_not(folder)):
            return folder
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


def _why_not(folder: Path) -> str:
    """Return why a run cannot resume from a checkpoint, as a phrase; empty: it can."""
    if fault := find_damage(folder):
        return fault
    if any(folder.glob("rng_state*.pth")):
        return ""
    return _MODEL_ALONE


def _way(folder: Path) -> str:
    """Return how to go on from another checkpoint than a damaged one, as a sentence."""
    if not (folder / FILES).is_file():
        return ""
    others = [one for one in reversed(list_checkpoints(folder.parent)) if one.name != folder.name]
    whole = next((one.name for one in others if not _why_not(one)), None)
    return f" Restore it, or resume from {whole}, which is whole." if whole else " Restore it."
