"""A run folder that a run has used before: what is a run's in it, and whether another one may begin there."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .checkpoints import UNFINISHED, is_checkpoint, list_checkpoints
from .files import read_optional, write_json
from .held_out import FILE as HELD_OUT
from .held_out import read_held_out
from .models import BEST, CARD, INDEX, NEW_BEST, OLD_BEST, has_model, is_trls_card
from .prompt_ledger import FILE as LEDGER
from .segments import changes, table
from .trainer_state import FILE as STATE
from .trainer_state import last_step
from .training_record import RECORD, TRAINING

_RECORDS = (RECORD, STATE, HELD_OUT, LEDGER)
_BY_STEP = ("credit", "completions")  # folders of NAME_STEP.parquet
_OF_TRAINING = "training_args.bin"  # beside each model that transformers' trainer saves, and no other
_WEIGHTS = ("model.safetensors", INDEX, "model-*-of-*.safetensors", "adapter_model.safetensors")
_BESIDE_WEIGHTS = (
    *("adapter_config.json", "config.json", "generation_config.json", "chat_template.jinja", _OF_TRAINING),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "processor_config.json", "preprocessor_config.json", "prompt_form.json"),
)


def is_used(folder: Path) -> bool:
    """Return whether a folder, which need not exist, holds what a run has written."""
    begun = any((folder / name).is_file() for name in _RECORDS[1:]) or any(_checkpoints(folder)) or any(_steps(folder))
    # `trl-miner compare` writes its part of the record before the run
    return begun or ((folder / RECORD).is_file() and read_optional(folder / RECORD, []).keys() != {"compared"})


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
        settings: Of the run, as far as they are known: see `segments.settings_of`.
        wanted: `resume_from_checkpoint`.
        checkpoint: What the run resumes from; None: it starts from scratch.
        model: A folder, or a Hub id.

    Raises:
        ValueError: The folder is another run's, or the run would delete its own model.
    """
    folder = Path(config.output_dir or "trainer_output")
    if (checkpoint is not None and _is_of(checkpoint, folder)) or not is_used(folder):
        return False
    if config.overwrite_output_dir:
        if model and Path(model).exists() and _clears(folder, Path(model).resolve()):
            raise ValueError(
                f"overwrite_output_dir must not delete the model that the run starts from: got {model} in {folder}. "
                f"Give another output_dir."
            )
        return True
    holds, go_on = "holds a run.", "To go on with it, add --resume_from_checkpoint latest; or "
    if checkpoint is None and wanted == "latest":
        why = _why_another(folder, settings)
        if not why:
            return False  # the same run, which died before its first checkpoint
        holds, go_on = f"holds a run without a checkpoint to go on from, {why}\n", "To start anew, "
    raise ValueError(
        f"output_dir must be new to a run: {folder} {holds} {go_on}give another output_dir; or add "
        f"--overwrite_output_dir, which deletes what runs have written there, and nothing else."
    )


def _is_of(checkpoint: Path, folder: Path) -> bool:
    """Return whether a checkpoint is a run folder's own; it may be a link to where there is more room."""
    return folder.resolve() in (checkpoint.absolute().parent.resolve(), checkpoint.resolve().parent)


def _clears(folder: Path, model: Path) -> bool:
    """Return whether clearing a run folder deletes a model, whose place is resolved."""
    places = [path.resolve() for path in _written(folder)]
    is_there = any(path.parent == model and path.suffix == ".safetensors" for path in places)
    return is_there or any(model.is_relative_to(path) for path in places)


def _why_another(folder: Path, settings: Mapping[str, str]) -> str:
    """Return why a run that starts anew would not repeat that of the folder, as the end of a sentence."""
    record = read_optional(folder / RECORD, [], TRAINING)
    known = (record.get("segments") or [{}])[-1].get("settings")
    if not known:
        return f"and {RECORD} does not say with which settings."
    if found := changes(known, settings):
        return f"and with other settings:{table(found)}."
    return "and it has finished." if record.get("finished") else ""


def say_finished(settings: Any, *, is_scored: bool) -> str:
    """Return what to say of a finished run that the settings would resume; empty: there is something to do.

    As in transformers, `num_train_epochs` sets the length where `max_steps` is below 1. With `is_scored`, the final
    model must have its scores.
    """
    if not settings.output_dir or settings.resume_from_checkpoint in (None, "false", "False"):
        return ""
    run = Path(settings.output_dir)
    finished = read_optional(run / RECORD, [], TRAINING).get("finished")  # a damaged record is written again
    if not finished:
        return ""
    steps = finished["steps"]
    if settings.max_steps > 0:
        has_all = steps >= settings.max_steps
    else:
        has_all = (finished["epochs"] or 0) >= settings.num_train_epochs
    wanted = Path(settings.resume_from_checkpoint)  # a folder, or a word that stands for the newest checkpoint
    if not has_all or (wanted.is_dir() and (last_step(wanted) or 0) < steps):
        return ""
    held_out = read_held_out(run, [])
    if not has_model(run) or last_step(run) is None or (is_scored and not (held_out and held_out.after)):
        return ""
    return (
        f"Nothing to do: {run} holds a finished run of {steps} steps, which stays as it is. To train on, raise "
        f"max_steps or num_train_epochs; to start from scratch, leave resume_from_checkpoint out."
    )


def check_record(folder: Path, settings: Mapping[str, str]) -> None:
    """Raise ValueError if a finished run, which is asked for again, has other settings."""
    record = read_optional(folder / RECORD, [], TRAINING)
    if found := changes((record.get("segments") or [{}])[-1].get("settings") or {}, settings):
        raise ValueError(
            f"A run must go on with the settings that it has: {folder} holds a finished run with others:"
            f"{table(found)}.\nGive the same, start anew in another output_dir, or add --overwrite_output_dir "
            f"without --resume_from_checkpoint, which deletes that run."
        )


def clear(folder: Path) -> None:
    """Delete all that runs have written into a folder, and nothing else. Links are deleted, not followed."""
    for path in [*_written(folder)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for place in (folder / name for name in _BY_STEP):
        if place.is_dir() and not place.is_symlink() and not any(place.iterdir()):
            place.rmdir()
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
    yield from _checkpoints(folder)
    links = [path for name in _BY_STEP if (path := folder / name).is_symlink()]
    yield from (path for path in _steps(folder) if path.parent not in links)
    yield from links if any(_steps(folder)) else []
    if (folder / _OF_TRAINING).is_file():
        for name in (*_WEIGHTS, *_BESIDE_WEIGHTS):
            yield from folder.glob(name)
    for name in (BEST, NEW_BEST, OLD_BEST):
        if (folder / name / HELD_OUT).is_file() or any((folder / name).glob("*.safetensors")):
            yield folder / name
    others = (UNFINISHED, *_RECORDS[1:], "prompt_form.json", "training.png")
    yield from (path for name in others if (path := folder / name).exists() or path.is_symlink())
    if is_trls_card(folder / CARD):
        yield folder / CARD


def _checkpoints(folder: Path) -> Iterator[Path]:
    return filter(is_checkpoint, list_checkpoints(folder))


def _steps(folder: Path) -> Iterator[Path]:
    for name in _BY_STEP:
        files = (folder / name).glob(f"{name}_*.parquet")
        yield from (path for path in files if path.stem.rpartition("_")[2].isdecimal())
