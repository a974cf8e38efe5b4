"""Assemble the folder that is published: a model's files, its log, its scores, and its card."""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..runs.evaluation import AFTER, read_evaluation, until, write_evaluation
from ..runs.files import read_optional, write_json
from ..runs.models import ADAPTER, BEST, Model, weight_files
from ..runs.trainer_state import FILE as STATE
from ..runs.trainer_state import last_step
from ..runs.training_record import read_run_record
from .model_card import EMPTY_CARD, MARKER, PICTURE, RunFacts, complete_card

# Everything that a model needs to run besides its weights, and no pickles.
_FILES = (
    *("config.json", "generation_config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("*.model", "*.tiktoken", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt"),
    *("merges.txt", "*.jinja", "additional_chat_templates/*.jinja", "chat_template.json"),
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
)
_SECRET = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD)(_|$)", re.IGNORECASE)
_SHORTEST_SECRET = 16  # characters; a shorter value may occur in a vocabulary by chance


def assemble(
    model: Model,
    target: Path,
    *,
    name: str,
    place: Callable[[Path, Path], Any],
    benchmarks: Mapping[str, Any] | None = None,
    secrets: Iterable[str | None] = (),
) -> Path:
    """Fill the empty folder `target` with everything that is published of a model, and return it.

    `place` puts a file of the run in its place (`copy`, `link` or `os.symlink`), `name` is the repository's, and
    `benchmarks` come from a `scores.json`. Raises ValueError if a file holds a secret of the environment or of
    `secrets`.
    """
    files = {path.relative_to(model.weights): path for path in weight_files(model.weights)}
    for folder in (model.run, model.weights):  # a tokenizer may be in only one of them
        paths = (path for pattern in _FILES for path in folder.glob(pattern))
        files |= {path.relative_to(folder): path for path in paths if path.is_file()}
    is_adapter = (model.weights / ADAPTER).is_file()
    if is_adapter:
        files.pop(Path("config.json"), None)
    for inner, path in files.items():
        (target / inner).parent.mkdir(parents=True, exist_ok=True)
        place(path.resolve(), target / inner)
    evaluation, moment = _evaluation(model)
    log = read_optional(_state_folder(model) / STATE).get("log_history", [])
    write_json(target / "log_history.json", log)
    if evaluation:
        write_evaluation(target, evaluation)
    facts = RunFacts(
        read_run_record(model.run), log, evaluation, name, moment, benchmarks, is_adapter, _draw(model, target)
    )
    (target / "README.md").write_text(complete_card(_read_card(model), facts), encoding="utf-8")
    check_secrets(target, secrets)
    return target


def copy(source: Path, target: Path) -> None:
    """Copy a file into a folder that somebody may edit. Only weights, which nobody edits, are linked if possible."""
    if source.suffix == ".safetensors":
        link(source, target)
    else:
        shutil.copyfile(source, target)


def link(source: Path | str, target: Path | str) -> None:
    """Hard-link a file, so that it outlives the run's own; copy it on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def adapter_warning(weights: Path) -> str:
    """Return a warning for an adapter that nobody else can load, or an empty text."""
    base = read_optional(weights / ADAPTER).get("base_model_name_or_path") or ""
    if not (os.path.isabs(base) or os.path.exists(base)):
        return ""
    return (
        f"Warning: the adapter's base model is a folder of this machine, {base}. Nobody else can load it, and its "
        f"path becomes public. Write the base model's Hub id into adapter_config.json (base_model_name_or_path)."
    )


def check_secrets(folder: Path, more: Iterable[str | None] = (), suffixes: tuple[str, ...] | None = None) -> None:
    """Raise ValueError if a file to be published holds a token or key from the environment, or one of `more`.

    Without `suffixes`, all files but weights and pictures are searched.
    """
    secrets = [(name, value) for name, value in os.environ.items() if _SECRET.search(name)]
    secrets += [("a token", value) for value in more if value]
    values = [(n, v.encode()) for n, v in secrets if len(v) >= _SHORTEST_SECRET and not os.path.exists(v)]
    for path in sorted(folder.rglob("*")):
        is_searched = path.suffix in suffixes if suffixes else path.suffix not in (".safetensors", ".png")
        if path.is_file() and is_searched:
            content = path.read_bytes()
            for name, value in values:
                if value in content:
                    raise ValueError(
                        f"A file to be published must not hold a secret: {path.name} has the value of {name}. "
                        f"Remove it there, and replace the secret if the file was shared."
                    )


def _evaluation(model: Model) -> tuple[dict[str, Any], str]:
    """Return the scores up to this model, by moment, and the moment that it is of."""
    if model.weights.name == BEST and (evaluation := read_evaluation(model.weights)):
        return evaluation, next(iter(evaluation))
    evaluation = read_evaluation(model.run)
    if model.step is None:
        return evaluation, AFTER
    moment = f"step {model.step}"
    if AFTER in evaluation and last_step(model.run) == model.step:
        evaluation[moment] = evaluation[AFTER]  # the last checkpoint is the model after training
    return until(model.step, evaluation), moment


def _state_folder(model: Model) -> Path:
    """Return the folder whose log goes up to this model."""
    return model.weights if (model.weights / STATE).is_file() else model.run


def _draw(model: Model, target: Path) -> bool:
    """Draw the training up to this model, and return whether there is a picture: a run without logs has none."""
    from ..viewing.curves import draw_training

    try:
        draw_training(_state_folder(model), target / PICTURE)
    except (ValueError, OSError):
        return False
    return True


def _read_card(model: Model) -> str:
    """Return TRL's card. The one that PEFT writes beside an adapter names the base model's folder."""
    path = model.run / "README.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return text if "huggingface/trl)" in text and MARKER in text else EMPTY_CARD
