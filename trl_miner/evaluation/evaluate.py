"""Run an evaluation from the options of `trl-miner eval`: load the model, the problems and the
backend, and sample."""

import dataclasses
import hashlib
import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..common.importing import did_you_mean
from ..common.network import is_path, not_found, not_loaded
from ..common.redaction import learn
from ..data.benchmarks import KNOWN, find_benchmark, is_known, load, read_entry
from ..data.columns import check_column
from ..data.guessing import columns_in
from ..data.prompt_form import describe, find_file, read_form
from ..data.prompts import PromptForm, guess_style
from ..data.reading import find_files, read_file
from ..data.worlds import WORLDS
from ..runs.checkpoints import STATE
from ..runs.files import read_object
from ..runs.held_out import FILE as HELD_OUT
from ..runs.models import ADAPTER
from ..runs.records import BASE_MODEL
from ..runs.training_record import versions
from .backends import Backend, ModelOptions, ServerBackend, TransformersBackend, VLLMBackend
from .generate import ProblemSet, Sampling, generate, prompt_ids

_WEIGHTS = ("*.safetensors", "*.bin", "*.json", "*.jinja")
_CHUNK, _CHUNKS = 2**16, 64


def options_of(args: Namespace) -> ModelOptions:
    """Take the options of a model from parsed arguments."""
    return ModelOptions(
        **{option.name: getattr(args, option.name) for option in dataclasses.fields(ModelOptions)}
    )


def load_problem_sets(
    benchmarks: Sequence[str],
    samples: int | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> list[ProblemSet]:
    """Load and check the problems; the arguments are the options of `trl-miner eval`, `given` those
    of `DATA_SETTINGS`."""
    if not benchmarks:
        raise ValueError(
            f"No benchmark is named. Add --benchmarks with some of {', '.join(KNOWN)}, or NAME=PATH"
            " for a file of your own."
        )
    problem_sets = []
    _check_columns([path for _, path, _ in map(read_entry, benchmarks) if path], given)
    for entry in map(read_entry, dict.fromkeys(benchmarks)):
        if not is_known(entry):
            raise ValueError(
                f"No benchmark named {entry.name!r}.{did_you_mean(entry.name, KNOWN)} Known:"
                f" {', '.join(KNOWN)}. For a file of your own, write NAME=PATH."
            )
        benchmark = find_benchmark(entry.name, entry.path, given)
        problems, record = load(benchmark, entry.path or None)
        problem_sets.append(
            ProblemSet(benchmark, problems[: entry.number], samples or benchmark.samples, record)
        )
    return problem_sets


def _check_columns(paths: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise ValueError for a column that is named, but that no file of the user's own has."""
    rows = [row for path in paths for file in find_files(Path(path)) for row in read_file(file)]
    for setting in given.items():
        for column in columns_in(*setting):
            check_column(", ".join(paths), rows, column)


def evaluate(
    output: str | Path, model: ModelOptions, problem_sets: Sequence[ProblemSet], sampling: Sampling
) -> int:
    """Draw the samples that a folder lacks, and return their number. See `generate`."""
    source = _resolve(model)
    server = _find_server(source) if model.base_url else None
    if server is not None:  # the same command may meet another model there
        source = dataclasses.replace(source, served_model=server.model)
    fingerprint = _fingerprint(source)  # before anything is loaded
    # the same commit for all that is loaded, should the repository move
    if not Path(source.model).is_dir():
        source = dataclasses.replace(source, revision=fingerprint.get("model") or source.revision)
    tokenizer = _load_tokenizer(source)

    def load() -> Backend:
        backend = server or _load_backend(source, tokenizer)
        if _fingerprint(source) != fingerprint:
            raise ValueError(
                f"The model must stay the same while it is loaded: the files of {model.model} have"
                " changed meanwhile. Wait until nobody writes them, and run the same command"
                " again."
            )
        return backend

    form = _choose_form(model, source, tokenizer)
    settings = {
        **{
            name: getattr(model, name)
            for name in ("model", "revision", "adapter", "dtype", "max_model_len")
        },
        "backend": _backend_name(model),
        "fingerprint": fingerprint,
        "style": form.style,
        "system_prompt": form.system,
        "prompt_template": form.template,
        "chat_template_kwargs": dict(form.template_kwargs) or None,
        "versions": versions(),
    }
    return generate(
        output, problem_sets, load, partial(prompt_ids, tokenizer, form), sampling, settings
    )


def _backend_name(model: ModelOptions) -> str:
    """Return the backend that runs: the server at `base_url`, else the chosen one, else vLLM where
    it is installed."""
    if model.base_url:
        return "server"
    if model.backend != "auto":
        return model.backend
    return "vllm" if find_spec("vllm") else "transformers"


def sample_filter(model: ModelOptions, output: str | Path, source: str | Path | None = None) -> int:
    """Draw one greedy answer to each training question of MedMCQA, for `build_medical`."""
    from ..data.training_set import MEDMCQA_TRAIN, medmcqa_train_problems

    questions = ProblemSet(MEDMCQA_TRAIN, medmcqa_train_problems(source), 1)
    return evaluate(
        output, model, [questions], Sampling(temperature=0.0, top_p=1.0, max_tokens=2048)
    )


def load_model(model: ModelOptions) -> tuple[Backend, Any, PromptForm]:
    """Return what samples a model, its tokenizer, and the form in which it is asked."""
    source = _resolve(model)
    tokenizer = _load_tokenizer(source)
    form = _choose_form(model, source, tokenizer)
    return TransformersBackend(source, tokenizer), tokenizer, form


def _resolve(model: ModelOptions) -> ModelOptions:
    """Return the options of the model to load: find an embedded one, and the base of an adapter."""
    if model.adapter:
        model = dataclasses.replace(model, adapter=_folder_of(model.adapter, None))
    if model.model in WORLDS:
        from ..data.base_model import find_model

        return dataclasses.replace(model, model=find_model(model.model), revision=None)
    is_folder = Path(model.model).exists()
    if not is_folder and is_path(model.model):
        raise ValueError(not_found("Folder", model.model))
    config = None if model.adapter else find_file(model.model, ADAPTER, model.revision)
    if config is None:
        return model
    base, adapter = read_object(config, record=BASE_MODEL), _folder_of(model.model, model.revision)
    revision = (model.revision if is_folder else None) or base.get("revision")
    return dataclasses.replace(
        model, model=base["base_model_name_or_path"], adapter=adapter, revision=revision
    )


def _folder_of(adapter: str, revision: str | None) -> str:
    """Return the folder of an adapter; of one on the Hub that in its cache, without checkpoints."""
    if Path(adapter).is_dir():
        return adapter
    from huggingface_hub import snapshot_download

    try:
        return str(snapshot_download(adapter, revision=revision, ignore_patterns=["*/*"]))
    except (OSError, ValueError) as error:
        raise ValueError(not_loaded("adapter", adapter, error, revision)) from error


def _load_tokenizer(source: ModelOptions) -> Any:
    from transformers import AutoTokenizer

    name, revision = source.model, source.revision
    if source.adapter and find_file(source.adapter, "tokenizer_config.json"):
        name, revision = source.adapter, None  # the chat template of its training
    try:
        return AutoTokenizer.from_pretrained(name, revision=revision)
    except (OSError, ValueError) as error:
        raise ValueError(not_loaded("model", name, error, revision)) from error


def _choose_form(model: ModelOptions, source: ModelOptions, tokenizer: Any) -> PromptForm:
    """Return the form of prompt to ask a model in: of the options, of its training, or of its name.

    Say where it is a guess, or not that of the training.
    """
    names = [name for name in (source.adapter, model.model, source.model) if name]
    forms = (read_form(name, source.revision if name == source.model else None) for name in names)
    trained = next((form for form in forms if form is not None), None)
    known = trained or PromptForm(guess_style(model.model, tokenizer))
    chosen: Any = known.style if model.style == "auto" else model.style
    kwargs = (
        known.template_kwargs if model.chat_template_kwargs is None else model.chat_template_kwargs
    )
    if model.chat_template_kwargs and chosen != "chat":
        raise ValueError(
            "--chat-template-kwargs is for a chat template: got"
            f" {dict(model.chat_template_kwargs)}, and {model.model} is asked in plain text. Leave"
            " it out, or set --style chat."
        )
    form = PromptForm(
        chosen,
        known.system if model.system_prompt is None else model.system_prompt or None,
        known.template if model.prompt_template is None else model.prompt_template or None,
        kwargs if chosen == "chat" else {},
    )
    said = ""
    if trained is None and model.style == "auto":
        other = "plain" if chosen == "chat" else "chat"
        said = (
            "does not say how it was trained. By its name and tokenizer it is asked with"
            f" {describe(form)}"
        )
        said += (
            f"; --style {other} chooses the other form"
            if getattr(tokenizer, "chat_template", None)
            else ""
        )
    elif trained is not None and form != trained:
        said = (
            f"was trained on {describe(trained)}. It is asked as the options say: {describe(form)}"
        )
    elif trained is not None and not trained.is_known:
        said = (
            f"was trained on prompts whose words are not known. It is asked with {describe(form)}"
        )
        said += ": set --prompt-template and --system-prompt if they were others"
    if said:
        print(f"{model.model} {said}.", file=sys.stderr)
    return form


def _find_server(source: ModelOptions) -> ServerBackend:
    key = os.environ.get(source.api_key_env or "")
    if source.api_key_env and not key:
        raise ValueError(
            f"--api-key-env must name a variable with a key: {source.api_key_env} is not set."
        )
    learn({"api_key": key})
    return ServerBackend(source, key)


def _load_backend(source: ModelOptions, tokenizer: Any) -> Backend:
    if _backend_name(source) == "transformers":
        return TransformersBackend(source, tokenizer)
    if not find_spec("vllm"):
        raise ValueError(
            "vLLM is not installed. Install trl_miner[vllm], or use --backend transformers or"
            " --base-url."
        )
    return VLLMBackend(source)


def _fingerprint(source: ModelOptions) -> dict[str, str | None]:
    """Return what distinguishes models of the same name: a commit of the Hub, or a hash of local
    files."""
    if source.base_url:
        return {"served_model": source.served_model}
    adapter = {"adapter": identity(source.adapter, None)} if source.adapter else {}
    return {"model": identity(source.model, source.revision), **adapter}


def identity(name: str, revision: str | None) -> str | None:
    """Return a model's commit on the Hub, or a hash of a folder's files, which another training
    step changes."""
    folder = Path(name)
    if not folder.is_dir():
        from transformers import AutoConfig

        try:
            config = AutoConfig.from_pretrained(name, revision=revision)
        except (OSError, ValueError) as error:
            raise ValueError(not_loaded("model", name, error, revision)) from error
        return getattr(config, "_commit_hash", None)
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)}):
        if path.name in (HELD_OUT, STATE) or not path.is_file():  # a pipe would hang its reader
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        # Training moves every weight, so a few chunks of each file are enough; reading 28 GB would
        # take a minute.
        with open(path, "rb") as file:
            for start in range(0, size, max(_CHUNK, size // _CHUNKS)):
                file.seek(start)
                digest.update(file.read(_CHUNK))
    return digest.hexdigest()
