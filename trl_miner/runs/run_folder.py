"""A run folder that a run has used before: what is a run's in it, and whether another may begin or
go on there."""

import logging
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from .checkpoints import STATE, find_fault, list_checkpoints, step_of
from .held_out import FILE as HELD_OUT
from .models import ADAPTER, INDEX
from .prompt_ledger import FILE as LEDGER
from .prompt_ledger import read_ledger
from .settings import differences, refused
from .training_record import RECORD, read_run_record

logger = logging.getLogger(__name__)

BEST = "best"  # the folder of the model with the best held-out score
_STEPS = ("credit/credit_*[0-9].parquet", "completions/completions_*[0-9].parquet")
# beside each model that transformers' trainer saves, and no other
_OF_TRAINING = "training_args.bin"
# A new run writes over what else belongs to a model.
_MODEL = ("*.safetensors", INDEX, ADAPTER, "prompt_form.json", "training.png", _OF_TRAINING)


def must_clear(
    config: Any, settings: Mapping[str, str], *, wanted: Any, checkpoint: Path | None, model: str
) -> bool:
    """Return whether a run that is about to begin must clear its folder first of what an earlier
    one has written: with `overwrite_output_dir`, or if that run has finished no step.

    Args:
        config: With `output_dir` and `overwrite_output_dir`.
        settings: Of the run, as far as they are known: see `settings.settings_of`.
        wanted: `resume_from_checkpoint`.
        checkpoint: What the run resumes from; None: it starts from scratch. It may be a link to
            where there is room.
        model: A folder, or a Hub id.

    Raises:
        ValueError: The folder is another run's, or the run would delete its own model.
    """
    folder = Path(config.output_dir or "trainer_output")
    places = (
        []
        if checkpoint is None
        else [checkpoint.absolute().parent.resolve(), checkpoint.resolve().parent]
    )
    if folder.resolve() in places or not _written(folder):
        return False
    if config.overwrite_output_dir:
        if (
            model
            and Path(model).exists()
            and Path(model).resolve().is_relative_to(folder.resolve())
        ):
            raise ValueError(
                "overwrite_output_dir must not delete the model that the run starts from: got"
                f" {model} in {folder}. Give another output_dir."
            )
        return True
    if not _has_finished_step(folder):
        return True
    why = ""
    # the same run may have died before its first checkpoint
    if checkpoint is None and wanted == "latest":
        known = read_run_record(folder).get("settings")
        found = refused(differences(known or {}, settings))
        if known and not found and not (folder / STATE).is_file():  # which comes at the end
            return False
        why = (
            f" without a checkpoint, and with other settings: {found}"
            if found
            else ", and no checkpoint"
        )
    raise ValueError(
        f"{folder} already contains a run{why}."
        f" {'Choose' if why else 'Resume it with --resume_from_checkpoint latest, choose'} another"
        " --output_dir, or add --overwrite_output_dir to delete the old run first (other files"
        " stay)."
    )


def _has_finished_step(folder: Path) -> bool:
    """Return whether a run in a folder has come further than its first step: what a failed try
    leaves does not keep the next one out."""
    written = {path.name for path in _written(folder)}
    if written - {RECORD, HELD_OUT, LEDGER}:
        return True
    ledger = read_ledger(folder)
    if ledger is None:
        return False
    is_unknown = bool(ledger.notes) and not ledger.batches
    return is_unknown or any(batch.step > 1 for batch in ledger.batches)


def clear(folder: Path) -> None:
    """Delete all that runs have written into a folder, and nothing else. Of a linked checkpoint the
    link goes."""
    # the record last, so that a folder that is cleared in part is still a run's
    for path in _written(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def forget_after(folder: Path, step: int) -> None:
    """Delete the records of single steps after one from which a run of that folder goes on; 0 is
    its start.

    Whole checkpoints after it are renamed: "latest" would resume from them, and rotation keep them
    for the new ones.
    """
    for path in (path for pattern in _STEPS for path in folder.glob(pattern)):
        if int(path.stem.rpartition("_")[2]) > step:
            path.unlink(missing_ok=True)
    for path in list_checkpoints(folder):
        if (step_of(path) or 0) > step and not find_fault(path):
            left = next(
                place for n in count(1) if not (place := folder / f"left-{n}-{path.name}").exists()
            )
            logger.warning(
                f"The run goes on from step {step}: {path.name} is now {left.name}, and may be"
                " deleted."
            )
            path.rename(left)


def _written(folder: Path) -> list[Path]:
    """Return everything that runs write into a folder, but for what `trl-miner compare` writes
    before them."""
    names = [*_MODEL] if (folder / _OF_TRAINING).is_file() else []
    names += [BEST] if (folder / BEST / _OF_TRAINING).is_file() else []
    names += [*_STEPS, STATE, HELD_OUT, LEDGER, RECORD]
    return [*list_checkpoints(folder), *(path for name in names for path in folder.glob(name))]
