"""The folder that is published: which files of a run, whole ones only, and a card built from what the run left."""

import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runs.training_record import RECORD, read_run_record
from .model_card import EMPTY_CARD, MARKER, PICTURE, RunFacts, complete_card

# All that a model needs to run and nothing that is a pickle; weights come on top, as their index names them.
_FILES = (
    *("config.json", "generation_config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("*.model", "*.tiktoken", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt"),
    *("merges.txt", "*.jinja", "additional_chat_templates/*.jinja", "chat_template.json"),
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
)
_INDEX = "model.safetensors.index.json"
_SECRET = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD)(_|$)", re.IGNORECASE)
_SHORTEST_SECRET = 16  # characters; a shorter value may well stand in a vocabulary


@dataclass(frozen=True)
class Model:
    """A model of a run.

    Attributes:
        weights: The folder with its files.
        run: The folder with what the run says of itself; mostly the same.
        step: The optimizer step it is of; None: unknown, or the end.
    """

    weights: Path
    run: Path
    step: int | None = None


def find_model(run: Path) -> Model:
    """The model of a run folder, of a checkpoint or of `best`; of a run that was killed, its newest whole checkpoint.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: No whole model in it.
    """
    if not run.is_dir():
        raise FileNotFoundError(f"RUN must be the folder of a run: got {run}, which is not there.")
    inside = run.resolve().parent
    if _step_of(run) is not None or run.name == "best":
        about = inside if any((inside / name).is_file() for name in (RECORD, "evaluation.json", "README.md")) else run
        weight_files(run)
        return Model(run, about, _step_of(run))
    checkpoints = find_checkpoints(run)
    try:
        if not checkpoints or _is_newer(weight_files(run)[0], checkpoints[-1]):
            weight_files(run)
            return Model(run, run)
    except ValueError:
        if not checkpoints:
            raise
    return checkpoints[-1]


def _is_newer(weights: Path, checkpoint: Model) -> bool:
    """Whether the weights of a run folder are at least of the checkpoint's step: by the state beside them, else, of a
    script that saves none, by the clock."""
    step = _last_step(weights.parent)
    if step is not None:
        return step >= (checkpoint.step or 0)
    return weights.stat().st_mtime >= weight_files(checkpoint.weights)[0].stat().st_mtime


def find_checkpoints(run: Path) -> list[Model]:
    """The whole checkpoints of a run, oldest first."""
    found = []
    for folder in run.glob("checkpoint-*"):
        step = _step_of(folder)
        if step is not None and _last_step(folder) is not None:  # transformers writes its state last
            try:
                weight_files(folder)
            except ValueError:
                continue
            found.append(Model(folder, run, step))
    return sorted(found, key=lambda model: model.step or 0)


def weight_files(folder: Path) -> list[Path]:
    """The files of the weights: the adapter's alone if there is one.

    Raises:
        ValueError: There are none, or they are not whole.
    """
    if (folder / "adapter_config.json").is_file():
        files = [folder / "adapter_model.safetensors"]
    elif (folder / _INDEX).is_file() and not (folder / "model.safetensors").is_file():
        index = _read_json(folder / _INDEX)
        files = [folder / _INDEX, *(folder / name for name in sorted(set(index["weight_map"].values())))]
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
    """Whether the file is as long as its header says."""
    size = file.stat().st_size
    with open(file, "rb") as opened:
        start = opened.read(8)
        if len(start) < 8 or (length := struct.unpack("<Q", start)[0]) > size:
            return False
        try:
            header = json.loads(opened.read(length))
        except ValueError:
            return False
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return 8 + length + max(ends, default=0) == size


def assemble(
    model: Model,
    target: Path,
    *,
    name: str,
    place: Callable[[Path, Path], Any],
    benchmarks: Mapping[str, Any] | None = None,
    card: str | None = None,
    secrets: Iterable[str | None] = (),
) -> Path:
    """Fill a folder with what is to be published of a model.

    Args:
        model: The model.
        target: An empty folder.
        name: Of the repository, for the card.
        place: Brings a file of the run to its place: `copy`, `link`, `os.symlink`.
        benchmarks: `benchmarks` of a `scores.json`, for the card.
        card: The card to complete; default: the run's README.md.
        secrets: What must not be in a file, besides the secrets of the environment.

    Returns:
        `target`.

    Raises:
        ValueError: There is no whole model, or a file holds a secret.
    """
    files = {path.relative_to(model.weights): path for path in weight_files(model.weights)}
    for folder in (model.run, model.weights):  # a tokenizer may lie in one of them only
        found = {path.relative_to(folder): path for pattern in _FILES for path in folder.glob(pattern)}
        files |= {inner: path for inner, path in found.items() if path.is_file()}
    is_adapter = (model.weights / "adapter_config.json").is_file()
    if is_adapter:
        files.pop(Path("config.json"), None)
    for inner, path in files.items():
        (target / inner).parent.mkdir(parents=True, exist_ok=True)
        place(path.resolve(), target / inner)
    evaluation, moment = _evaluation(model)
    log = _log(model)
    _write_json(target / "log_history.json", log)
    if evaluation:
        _write_json(target / "evaluation.json", evaluation)
    facts = RunFacts(
        read_run_record(model.run), log, evaluation, name, moment, benchmarks, is_adapter, _draw(model, target)
    )
    (target / "README.md").write_text(complete_card(card or _read_card(model), facts), encoding="utf-8")
    check_secrets(target, secrets)
    return target


def copy(source: Path, target: Path) -> None:
    """For a folder that somebody may edit: weights are linked where that can be, small files are not."""
    if source.suffix == ".safetensors":
        link(source, target)
    else:
        shutil.copyfile(source, target)


def link(source: Path, target: Path) -> None:
    """The same file, also after the run has deleted its own; a copy on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def adapter_warning(weights: Path) -> str:
    """What to say of an adapter that nobody else can load; empty: nothing."""
    config = weights / "adapter_config.json"
    base = _read_json(config).get("base_model_name_or_path") or "" if config.is_file() else ""
    if not (os.path.isabs(base) or os.path.exists(base)):
        return ""
    return (
        f"Warning: the adapter's base model is a folder of this machine, {base}. Nobody else can load it, and its "
        f"path is published: write the base model's Hub id into adapter_config.json (base_model_name_or_path)."
    )


def check_secrets(folder: Path, more: Iterable[str | None] = (), suffixes: tuple[str, ...] | None = None) -> None:
    """Raise ValueError if a file that is to be published holds a token or key of the environment.

    Args:
        folder: The folder.
        more: Other values to look for.
        suffixes: Of the files to look at; default: all but weights and pictures.
    """
    secrets = [(name, value) for name, value in os.environ.items() if _SECRET.search(name)]
    secrets += [("a token", value) for value in more if value]
    wanted = [(n, v.encode()) for n, v in secrets if len(v) >= _SHORTEST_SECRET and not os.path.exists(v)]
    for path in sorted(folder.rglob("*")):
        is_looked_at = path.suffix in suffixes if suffixes else path.suffix not in (".safetensors", ".png")
        if path.is_file() and is_looked_at:
            content = path.read_bytes()
            for name, value in wanted:
                if value in content:
                    raise ValueError(
                        f"A file that is published must not hold a secret: {path.name} has the value of {name}. "
                        f"Remove it there, and replace the secret if the file was shared."
                    )


def read_scores(folder: Path) -> dict[str, Any]:
    """`benchmarks` of a folder that `trl-miner eval` or `score` wrote.

    Raises:
        FileNotFoundError: It holds no scores.json.
    """
    path = folder / "scores.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"--evaluation must be a folder with scores.json: {folder} has none. Run trl-miner score."
        )
    return _read_json(path)["benchmarks"]


def _evaluation(model: Model) -> tuple[dict[str, Any], str]:
    """The scores up to this model, by moment, and the moment that it is of."""
    path = model.weights / "evaluation.json"
    if model.weights.name == "best" and path.is_file():
        evaluation = _read_json(path)
        return evaluation, next(iter(evaluation), "after")
    path = model.run / "evaluation.json"
    evaluation = _read_json(path) if path.is_file() else {}
    if model.step is None:
        return evaluation, "after"
    moment = f"step {model.step}"
    if "after" in evaluation and _last_step(model.run) == model.step:
        evaluation[moment] = evaluation["after"]  # the last checkpoint is the model after training
    kept = {}
    for when, scores in evaluation.items():
        step = when.removeprefix("step ")
        if when == "before" or (step.isdigit() and int(step) <= model.step):
            kept[when] = scores
    return kept, moment


def _log(model: Model) -> list[dict[str, Any]]:
    for folder in (model.weights, model.run):
        if (folder / "trainer_state.json").is_file():
            return _read_json(folder / "trainer_state.json")["log_history"]
    return []


def _draw(model: Model, target: Path) -> bool:
    """The picture of the steps up to this model; a run that has logged none has no picture."""
    from ..viewing.curves import draw_training

    folder = model.weights if (model.weights / "trainer_state.json").is_file() else model.run
    try:
        draw_training(folder, target / PICTURE)
    except (ValueError, OSError):
        return False
    return True


def _read_card(model: Model) -> str:
    """TRL's card, not the one that peft writes beside an adapter, with the folder of the base model in it."""
    path = model.run / "README.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return text if "huggingface/trl)" in text and MARKER in text else EMPTY_CARD


def _step_of(folder: Path) -> int | None:
    step = folder.resolve().name.removeprefix("checkpoint-")
    return int(step) if step.isdigit() and folder.resolve().name.startswith("checkpoint-") else None


def _last_step(folder: Path) -> int | None:
    try:
        return _read_json(folder / "trainer_state.json")["global_step"]
    except (OSError, ValueError):
        return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be JSON: {error}. The file may be cut off.") from error


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
