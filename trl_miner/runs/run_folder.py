"""A run folder that a run has used before: what is a run's in it, and whether another may begin or go on there."""

import errno
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import first_line
from .checkpoints import is_checkpoint, list_checkpoints, newest
from .files import read_optional, write_json
from .held_out import FILE as HELD_OUT
from .models import ADAPTER, CARD, INDEX, has_model, is_trls_card
from .prompt_ledger import FILE as LEDGER
from .settings import changes, table
from .trainer_state import FILE as STATE
from .trainer_state import last_step
from .training_record import RECORD, TRAINING

_RECORDS = (STATE, HELD_OUT, LEDGER)
_OF_TRAINING = "training_args.bin"  # beside each model that transformers' trainer saves, and no other
# A new run writes over what else belongs to a model.
_MODEL = ("*.safetensors", INDEX, ADAPTER, "prompt_form.json", "training.png", _OF_TRAINING)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SAYS_FULL = re.compile(r"No space left on device|Disk quota exceeded|os error (?:28|122|27)\b")
_MAY_MEAN_FULL = re.compile(r"PytorchStreamWriter|unexpected pos|iostream")  # of torch.save, which hides the reason


class DiskFull(OSError):
    """Nothing more can be written into the run folder."""


def why_full(error: BaseException, folder: str | Path) -> str | None:
    """Return that the disk is full if an error means that; None: it means something else.

    `folder` is where the run writes: the libraries that save models hide both the place and the reason.
    """
    free = shutil.disk_usage(folder).free / 2**20 if Path(folder).is_dir() else 0.0
    one: BaseException | None = error
    while one is not None:
        is_full = getattr(one, "errno", None) in _FULL or _SAYS_FULL.search(str(one))
        if is_full or (free < 1 and _MAY_MEAN_FULL.search(str(one))):
            said = first_line(error)
            return f"the disk is full, or a quota is used up: {folder} has {free:.1f} MiB free ({said})"
        one = one.__cause__ or one.__context__
    return None


def how_to_go_on(output: str | Path) -> str:
    """Return which checkpoint a run that ended early has, and how to go on from it."""
    checkpoint = newest(output)
    if checkpoint is None:
        return f"{output} has no checkpoint to go on from: start again."
    return f"The newest checkpoint is {checkpoint}. To go on: the same command with --resume_from_checkpoint latest"


def is_used(folder: Path) -> bool:
    """Return whether a folder, which need not exist, holds what a run has written."""
    # `trl-miner compare` writes its part of the record before the run
    has_begun = (folder / RECORD).is_file() and read_optional(folder / RECORD, []).keys() != {"compared"}
    return has_begun or any(_written(folder))


def make_room(config: Any, settings: Mapping[str, str], *, wanted: Any, checkpoint: Path | None, model: str) -> None:
    """Clear the run folder of a run that is about to begin where it must be: see `must_clear`."""
    folder = Path(config.output_dir)
    if must_clear(config, settings, wanted=wanted, checkpoint=checkpoint, model=model):
        clear(folder)
        print(f"{folder} is cleared of records, checkpoints and models of an earlier run.", flush=True)


def must_clear(config: Any, settings: Mapping[str, str], *, wanted: Any, checkpoint: Path | None, model: str) -> bool:
    """Return whether a run that is about to begin must clear its folder first of what an earlier one has written.

    Args:
        config: With `output_dir` and `overwrite_output_dir`.
        settings: Of the run, as far as they are known: see `settings.settings_of`.
        wanted: `resume_from_checkpoint`.
        checkpoint: What the run resumes from; None: it starts from scratch. It may be a link to where there is room.
        model: A folder, or a Hub id.

    Raises:
        ValueError: The folder is another run's, or the run would delete its own model.
    """
    folder = Path(config.output_dir or "trainer_output")
    places = [] if checkpoint is None else [checkpoint.absolute().parent.resolve(), checkpoint.resolve().parent]
    if folder.resolve() in places or not is_used(folder):
        return False
    if config.overwrite_output_dir:
        if model and Path(model).exists() and Path(model).resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"overwrite_output_dir must not delete the model that the run starts from: got {model} in {folder}. "
                f"Give another output_dir."
            )
        return True
    why = ""
    if checkpoint is None and wanted == "latest":  # the same run may have died before its first checkpoint
        record = read_optional(folder / RECORD, [], TRAINING)
        found = _changes(record, settings)
        if record.get("segments") and not found and not record.get("finished"):
            return False
        why = f" without a checkpoint, and with other settings:{table(found)}\n" if found else ", and no checkpoint"
    raise ValueError(
        f"output_dir must be new to a run: {folder} holds one{why}. To go on with it from a checkpoint, add "
        f"--resume_from_checkpoint latest; to start anew, give another output_dir, or add --overwrite_output_dir, "
        f"which deletes what runs have written there, and nothing else."
    )


def _changes(record: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return in what settings differ from those with which the run of a record went on last."""
    segments = record.get("segments") or [{"settings": {}}]
    return changes(segments[-1]["settings"], settings)


def say_finished(config: Any, settings: Mapping[str, str] | None = None) -> str:
    """Return what to say of a finished run that a configuration would resume; empty: there is something to do.

    As in transformers, `num_train_epochs` sets the length where `max_steps` is below 1.

    Raises:
        ValueError: The run has other `settings`, which would pass unnoticed.
    """
    if not config.output_dir or config.resume_from_checkpoint in (None, "false", "False"):
        return ""
    run = Path(config.output_dir)
    record = read_optional(run / RECORD, [], TRAINING)  # a damaged one is written again
    if not (finished := record.get("finished")):
        return ""
    steps = finished["steps"]
    has_all = steps >= config.max_steps
    if config.max_steps <= 0:
        has_all = (finished["epochs"] or 0) >= config.num_train_epochs
    wanted = Path(config.resume_from_checkpoint)  # a folder, or a word that stands for the newest checkpoint
    if not has_all or not has_model(run) or (wanted.is_dir() and (last_step(wanted) or 0) < steps):
        return ""
    if found := _changes(record, settings or {}):
        raise ValueError(
            f"A run must go on with the settings that it has: {run} holds a finished run with others:{table(found)}.\n"
            f"Give the same, start anew in another output_dir, or add --overwrite_output_dir without "
            f"--resume_from_checkpoint, which deletes that run."
        )
    return (
        f"Nothing to do: {run} holds a finished run of {steps:g} steps, which stays as it is. To train on, raise "
        f"max_steps or num_train_epochs; to start from scratch, give another output_dir."
    )


def clear(folder: Path) -> None:
    """Delete all that runs have written into a folder, and nothing else. Of a linked checkpoint the link goes."""
    for path in [*_written(folder)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    # the last, so that a folder that is cleared in part is still a run's
    if compared := read_optional(folder / RECORD, []).get("compared"):
        write_json(folder / RECORD, {"compared": compared})
    else:
        (folder / RECORD).unlink(missing_ok=True)


def forget_after(folder: Path, step: int) -> None:
    """Delete the records of single steps after one from which a run of that folder goes on; 0 is its start."""
    for path in [*_steps(folder)]:
        if int(path.stem.rpartition("_")[2]) > step:
            path.unlink(missing_ok=True)


def _written(folder: Path) -> Iterator[Path]:
    """Everything that runs write into a folder, but for `RECORD`."""
    yield from filter(is_checkpoint, list_checkpoints(folder))
    yield from _steps(folder)
    if (folder / _OF_TRAINING).is_file():
        yield from (path for name in _MODEL for path in folder.glob(name))
    yield from (path for name in _RECORDS if (path := folder / name).is_file())
    if is_trls_card(folder / CARD):
        yield folder / CARD


def _steps(folder: Path) -> Iterator[Path]:
    """The files of a run folder that hold one step each."""
    files = (path for name in ("credit", "completions") for path in folder.glob(f"{name}/{name}_*.parquet"))
    return (path for path in files if path.stem.rpartition("_")[2].isdecimal())
