"""The models of a run folder: the trained one in the folder itself, and those of its
checkpoints."""

import math
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from ..common.network import not_found
from .checkpoints import last_step, newest, step_of
from .files import read_object
from .records import record
from .training_record import RECORD

INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
CARD = "README.md"
_ADAPTER = TypeAdapter(record({"base_model_name_or_path": str}))
_SHARDS = TypeAdapter(record({"weight_map": dict[str, str]}))
_ADVICE = "Save the model again, or give another checkpoint."


def base_of_adapter(model: str) -> str | None:
    """Return the base model that the folder of an adapter names; None: it is no such folder."""
    path = Path(model, ADAPTER)
    if not path.is_file():
        return None
    return str(read_object(path, record=_ADAPTER)["base_model_name_or_path"])


@dataclass(frozen=True)
class Model:
    """A model of a run."""

    weights: Path  # the folder with its files
    run: Path  # the folder with what the run says of itself; mostly the same
    step: int | None = None  # the optimizer step it is of; None: unknown, or the end


def find_model(run: Path) -> Model:
    """Return the model of a run folder, or of a checkpoint; of a killed run, that of its newest
    checkpoint."""
    if not run.is_dir():
        raise FileNotFoundError(not_found("Run folder", run))
    folder = run.resolve()
    if step_of(folder) is not None:
        weight_files(run)
        # else nothing beside the folder belongs to the model
        is_of_run = (folder.parent / RECORD).is_file()
        return Model(run, folder.parent if is_of_run else run, step_of(folder))
    checkpoint = newest(run)
    has_own = any((run / name).exists() for name in ("model.safetensors", INDEX, ADAPTER))
    # Without a state of its own, it was saved by a script behind all checkpoints.
    if checkpoint is not None and not (
        has_own and (last_step(run) or math.inf) >= (step_of(checkpoint) or 0)
    ):
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
                f"No model in {folder}: it has no {file.name}. Give the output_dir of a run that has"
                " saved its model or a checkpoint, in safetensors."
            )
        if file.suffix == ".safetensors":
            try:
                # which compares its length with its header
                with safe_open(file, framework="numpy"):
                    pass
            except SafetensorError as error:
                raise ValueError(f"{file} must be whole: it is cut off. {_ADVICE}") from error
    return files
