"""The models of a run folder: the trained one in the folder itself, those of its checkpoints, and `best/`.

`best/` is the model with the highest Pass@1 so far. A new one is saved in `.best.new`, and the one before waits in
`.best.old` until it is in its place, so that one of them is always whole.
"""

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .checkpoints import step_of, whole_checkpoints
from .evaluation import FILE as EVALUATION
from .evaluation import read_evaluation, write_evaluation
from .files import read_object
from .trainer_state import last_step
from .training_record import RECORD

BEST, NEW_BEST, OLD_BEST = "best", ".best.new", ".best.old"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"


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
        inside = any((folder.parent / name).is_file() for name in (RECORD, EVALUATION, "README.md"))
        weight_files(run)
        return Model(run, folder.parent if inside else run, step_of(folder))
    checkpoints = find_checkpoints(run)
    try:
        weights = weight_files(run)[0]
        if not checkpoints or _is_newer(weights, checkpoints[-1]):
            return Model(run, run)
    except ValueError:
        if not checkpoints:
            raise
    return checkpoints[-1]


def _is_newer(weights: Path, checkpoint: Model) -> bool:
    """Return whether the weights of a run folder are of the checkpoint's step or later."""
    step = last_step(weights.parent)
    if step is not None:
        return step >= (checkpoint.step or 0)
    # The script saved no state: the clock tells.
    return weights.stat().st_mtime >= weight_files(checkpoint.weights)[0].stat().st_mtime


def find_checkpoints(run: Path) -> list[Model]:
    """Return the models of a run's whole checkpoints, oldest first."""
    models = []
    for folder in whole_checkpoints(run):
        with contextlib.suppress(ValueError):
            weight_files(folder)
            models.append(Model(folder, run, step_of(folder)))
    return models


def weight_files(folder: Path) -> list[Path]:
    """Return the files of the weights: the adapter's alone if there is one."""
    if (folder / ADAPTER).is_file():
        files = [folder / "adapter_model.safetensors"]
    elif (folder / INDEX).is_file() and not (folder / "model.safetensors").is_file():
        index = read_object(folder / INDEX, "Save the model again, or give another checkpoint.")
        files = [folder / INDEX, *(folder / name for name in sorted(set(index["weight_map"].values())))]
    else:
        files = [folder / "model.safetensors"]
    for file in files:
        if not file.is_file():
            pickles = [path.name for path in (*folder.glob("*model*.bin"), *folder.glob("*.pt"))]
            hint = f" {pickles[0]} is a pickle, which is not pushed." if pickles else ""
            raise ValueError(
                f"The folder of a model must hold {file.name}: {folder} does not.{hint} Give the output_dir of a run "
                f"that has saved its model or a checkpoint, in safetensors."
            )
        if file.suffix == ".safetensors" and not _is_whole(file):
            raise ValueError(f"{file} must be whole: it is cut off. Save the model again, or give another checkpoint.")
    return files


def _is_whole(file: Path) -> bool:
    """Return whether a file is as long as its header says."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):
            return True
    except SafetensorError:
        return False


def recover_best(run: Path) -> None:
    """Put the best model back in its place if the run was killed while another one took it."""
    if (run / OLD_BEST).exists() and not (run / BEST).exists():
        os.replace(run / OLD_BEST, run / BEST)


def begin_best(run: Path) -> None:
    """Clear the folder in which the new best model is saved of what a killed run has left."""
    shutil.rmtree(run / NEW_BEST, ignore_errors=True)


def finish_best(run: Path, scores: Mapping[str, Mapping[str, float]]) -> None:
    """Put the model saved in `.best.new`, with these scores, in the place of the best one so far."""
    write_evaluation(run / NEW_BEST, scores)
    shutil.rmtree(run / OLD_BEST, ignore_errors=True)
    if (run / BEST).exists():
        os.replace(run / BEST, run / OLD_BEST)
    os.replace(run / NEW_BEST, run / BEST)
    shutil.rmtree(run / OLD_BEST, ignore_errors=True)


def read_best_score(run: Path) -> float | None:
    """Return the Pass@1 of the best model; None: none is kept."""
    scores = read_evaluation(run / BEST)
    return next(iter(scores.values()))["pass@1"] if scores else None
