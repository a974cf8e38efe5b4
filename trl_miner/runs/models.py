"""The models of a run folder: the trained one in the folder itself, those of its checkpoints, and `best/`.

`best/` is the model with the highest Pass@1 so far. A new one is saved in `.best.new`, whose `held_out.json` comes
last; from then on it counts, and takes the place of the one before.
"""

import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from .checkpoints import last_step, newest, step_of
from .files import read_object
from .held_out import FILE as HELD_OUT
from .held_out import HeldOut, read_held_out, write_held_out
from .records import record
from .training_record import RECORD

BEST, NEW_BEST = "best", ".best.new"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
CARD = "README.md"
_SHARDS = TypeAdapter(record({"weight_map": dict[str, str]}))
_ADVICE = "Save the model again, or give another checkpoint."


@dataclass(frozen=True)
class Model:
    """A model of a run."""

    weights: Path  # the folder with its files
    run: Path  # the folder with what the run says of itself; mostly the same
    step: int | None = None  # the optimizer step it is of; None: unknown, or the end


def find_model(run: Path) -> Model:
    """Return the model of a run folder, a checkpoint or `best`; of a killed run, that of its newest checkpoint."""
    if not run.is_dir():
        raise FileNotFoundError(f"RUN must be the folder of a run: got {run}, which is not there.")
    folder = run.resolve()
    if step_of(folder) is not None or run.name == BEST:
        weight_files(run)
        is_of_run = (folder.parent / RECORD).is_file()  # else nothing beside the folder belongs to the model
        return Model(run, folder.parent if is_of_run else run, step_of(folder))
    checkpoint = newest(run)
    has_own = any((run / name).exists() for name in ("model.safetensors", INDEX, ADAPTER))
    # Without a state of its own, it was saved by a script behind all checkpoints.
    if checkpoint is not None and not (has_own and (last_step(run) or math.inf) >= (step_of(checkpoint) or 0)):
        return Model(checkpoint, run, step_of(checkpoint))
    weight_files(run)
    return Model(run, run)


def weight_files(folder: Path) -> list[Path]:
    """Return the files of the weights: the adapter's alone if there is one."""
    from safetensors import SafetensorError, safe_open

    if (folder / ADAPTER).is_file():
        files = [folder / "adapter_model.safetensors"]
    elif (folder / INDEX).is_file() and not (folder / "model.safetensors").is_file():
        shards = read_object(folder / INDEX, _ADVICE, _SHARDS)["weight_map"].values()
        files = [folder / name for name in (INDEX, *sorted({*shards}))]
    else:
        files = [folder / "model.safetensors"]
    for file in files:
        if not file.is_file():
            raise ValueError(
                f"The folder of a model must hold {file.name}: {folder} does not. Give the output_dir of a run that "
                f"has saved its model or a checkpoint, in safetensors."
            )
        if file.suffix == ".safetensors":
            try:
                with safe_open(file, framework="numpy"):  # which compares its length with its header
                    pass
            except SafetensorError as error:
                raise ValueError(f"{file} must be whole: it is cut off. {_ADVICE}") from error
    return files


def begin_best(run: Path) -> None:
    """Clear the folder in which the new best model is saved of what a killed run has left."""
    shutil.rmtree(run / NEW_BEST, ignore_errors=True)


def finish_best(run: Path, held_out: HeldOut) -> None:
    """Put the model saved in `.best.new`, with its one moment, in the place of the best one so far."""
    write_held_out(run / NEW_BEST, held_out)
    recover_best(run)


def recover_best(run: Path) -> None:
    """Put a best model that was saved in its place, if the run was killed before that was done."""
    if (run / NEW_BEST / HELD_OUT).is_file():
        shutil.rmtree(run / BEST, ignore_errors=True)
        os.replace(run / NEW_BEST, run / BEST)


def read_best_score(run: Path) -> float | None:
    """Return the Pass@1 of the best model; None: none is kept."""
    held_out = read_held_out(run / BEST)
    return None if held_out is None else next(iter(held_out.moments.values())).scores.get("pass@1")
