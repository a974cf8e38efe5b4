"""Run an evaluation from the options of `trl-miner eval`: load the model, the problems and the backend, and sample."""

import dataclasses
import hashlib
import importlib.util
import os
import platform
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..data.benchmarks import BENCHMARKS, KNOWN, find_benchmark, is_known, load_with_record, read_entry
from ..data.prompt_form import find_file
from ..data.worlds import WORLDS
from ..redaction import learn
from ..runs.files import read_object
from ..runs.held_out import FILE as HELD_OUT
from ..runs.models import ADAPTER
from ..runs.records import BASE_MODEL
from ..runs.trainer_state import FILE as STATE
from .asked_form import choose_form
from .backends import Backend, ModelSource, ServerBackend, TransformersBackend, VLLMBackend
from .generate import ProblemSet, PromptRenderer, Sampling, generate

_WEIGHTS = ("*.safetensors", "*.bin", "*.json")
_CHUNK, _CHUNKS = 2**16, 64


@dataclass(frozen=True)
class ModelOptions:
    """The model that samples, and how it runs; the fields are the options of `trl-miner eval`."""

    model: str
    revision: str | None = None
    adapter: str | None = None
    tokenizer: str | None = None
    style: str = "auto"
    system_prompt: str | None = None
    prompt_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    backend: str = "auto"
    base_url: str | None = None
    served_model: str | None = None
    api_key_env: str | None = None
    concurrency: int = 64
    batch_size: int = 32
    dtype: str = "auto"
    tensor_parallel_size: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "batch_size", "tensor_parallel_size", "max_model_len"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1: got {value}.")
        if self.backend == "server" and not self.base_url:
            raise ValueError("--backend server needs --base-url, such as http://localhost:8000/v1: got none.")
        if self.base_url and self.backend not in ("auto", "server"):
            raise ValueError(f"--base-url is for --backend server: got {self.backend}. Leave one of them out.")

        if self.api_key_env and not self.base_url:
            raise ValueError(f"--api-key-env is for --base-url: got {self.api_key_env} alone. Leave it out.")
        if self.api_key_env and not os.environ.get(self.api_key_env):
            raise ValueError(
                f"--api-key-env must name a variable that holds a key: got {self.api_key_env}, which is not set. "
                f"Export it first."
            )

    @classmethod
    def from_arguments(cls, args: Namespace) -> "ModelOptions":
        """Take the options from parsed arguments."""
        return cls(**{option.name: getattr(args, option.name) for option in dataclasses.fields(cls)})

    @property
    def backend_name(self) -> str:
        """The backend that runs: with "auto", a server, else vLLM, else transformers."""
        if self.backend != "auto":
            return self.backend
        if self.base_url:
            return "server"
        return "vllm" if _has_vllm() else "transformers"


def load_problem_sets(
    benchmarks: Sequence[str],
    local: Mapping[str, str],
    samples: int | None = None,
    *,
    strict: bool = True,
) -> list[ProblemSet]:
    """Load and check the problems; the arguments are the options of `trl-miner eval`."""
    if samples is not None and samples < 1:
        raise ValueError(f"samples must be at least 1: got {samples}.")
    entries = [read_entry(text) for text in benchmarks]
    names = [entry.name for entry in entries]
    if not names:
        raise ValueError(f"--benchmarks must name at least one: {', '.join(BENCHMARKS)}, or NAME=PATH.")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--benchmarks must name each once: got {name} {names.count(name)} times.")
    for name in local:
        if name not in names:
            raise ValueError(f"--local must name one of --benchmarks: got {name} for {', '.join(names)}.")
    problem_sets = []
    for entry in entries:
        name, path, count = entry
        if not is_known(entry):
            raise ValueError(
                f"--benchmarks must name known ones, or NAME=PATH of a file: got {name!r}. Known: {', '.join(KNOWN)}."
            )
        benchmark = find_benchmark(name, path)
        problems, record = load_with_record(benchmark, local.get(name), strict=strict)
        problem_sets.append(ProblemSet(benchmark, problems[:count], samples or benchmark.samples, record))
    return problem_sets


def evaluate(output: str | Path, model: ModelOptions, problem_sets: Sequence[ProblemSet], sampling: Sampling) -> int:
    """Draw the samples that a folder lacks, and return their number. See `generate`."""
    source = _resolve(model)
    fingerprint = _fingerprint(model, source)  # before anything is loaded
    if not Path(source.model).is_dir():  # the same commit for all that is loaded, should the repository move
        source = dataclasses.replace(source, revision=fingerprint.get("model") or source.revision)
    tokenizer = _load_tokenizer(model, source)

    def load() -> Backend:
        backend = _load_backend(model, source, tokenizer)
        if _fingerprint(model, source) != fingerprint:
            raise ValueError(
                f"The model must stay the same while it is loaded: the files of {model.model} have changed meanwhile. "
                f"Wait until nobody writes them, and run the same command again."
            )
        return backend

    settings = {
        "model": model.model,
        "revision": model.revision,
        "adapter": model.adapter,
        "backend": model.backend_name,
        "dtype": model.dtype,
        "tokenizer": model.tokenizer,
        "fingerprint": fingerprint,
        "versions": _versions(model.backend_name),
    }
    options = model.style, model.system_prompt, model.prompt_template, model.chat_template_kwargs
    renderer = PromptRenderer(tokenizer, choose_form(model.model, source, tokenizer, *options))
    return generate(output, problem_sets, load, renderer, sampling, settings)


def sample_filter(model: ModelOptions, output: str | Path, source: str | Path | None = None) -> int:
    """Draw one greedy answer to each training question of MedMCQA, for `build_medical`."""
    from ..data.training_set import MEDMCQA_TRAIN, medmcqa_train_problems

    questions = ProblemSet(MEDMCQA_TRAIN, medmcqa_train_problems(source), 1)
    return evaluate(output, model, [questions], Sampling(temperature=0.0, top_p=1.0, max_tokens=2048))


def _resolve(model: ModelOptions) -> ModelSource:
    """Return the model to load: find an embedded one, and the base of an adapter."""
    if model.model in WORLDS:
        from ..data.base_model import find_model

        return ModelSource(find_model(model.model), None, model.adapter, model.dtype)
    config = Path(model.model) / ADAPTER
    if config.is_file() and not model.adapter:
        base = read_object(config, record=BASE_MODEL)["base_model_name_or_path"]
        return ModelSource(base, model.revision, model.model, model.dtype)
    if not Path(model.model).exists() and (model.model.startswith(("/", ".", "~")) or model.model.count("/") > 1):
        raise ValueError(f"--model must be a Hub id or a folder: got {model.model}, which is not there.")
    return ModelSource(model.model, model.revision, model.adapter, model.dtype)


def _load_tokenizer(model: ModelOptions, source: ModelSource) -> Any:
    from transformers import AutoTokenizer

    name, revision = model.tokenizer or source.model, None if model.tokenizer else source.revision
    if not model.tokenizer and source.adapter and find_file(source.adapter, "tokenizer_config.json"):
        name, revision = source.adapter, None  # the chat template of its training
    try:
        return AutoTokenizer.from_pretrained(name, revision=revision)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--model must be a folder with a model and its tokenizer, or a reachable model on the Hub: could not "
            f"load the tokenizer of {name} ({str(error).splitlines()[0]}). Give a folder, or --tokenizer."
        ) from error


def _load_backend(model: ModelOptions, source: ModelSource, tokenizer: Any) -> Backend:
    name = model.backend_name
    if name == "server":
        key = os.environ[model.api_key_env] if model.api_key_env else None
        learn({"api_key": key})
        return ServerBackend(str(model.base_url), model.served_model, model.concurrency, key)
    if name == "transformers":
        return TransformersBackend(source, tokenizer, model.batch_size)
    if not _has_vllm():
        raise ValueError(
            "--backend vllm needs vLLM, which is not installed. Install trl_miner[vllm], or use --backend "
            "transformers or --base-url."
        )
    names = ("tensor_parallel_size", "gpu_memory_utilization", "max_model_len")
    options = {name: getattr(model, name) for name in names if getattr(model, name) is not None}
    return VLLMBackend(source, options)


def _fingerprint(model: ModelOptions, source: ModelSource) -> dict[str, str | None]:
    """Return what distinguishes models of the same name: a commit of the Hub, or a hash of local files."""
    if model.backend_name == "server":
        return {"served_model": model.served_model}
    adapter = {"adapter": _identity(source.adapter, None)} if source.adapter else {}
    return {"model": _identity(source.model, source.revision), **adapter}


def _identity(name: str, revision: str | None) -> str | None:
    folder = Path(name)
    if not folder.is_dir():
        from transformers import AutoConfig

        return getattr(AutoConfig.from_pretrained(name, revision=revision), "_commit_hash", None)
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)}):
        if path.name in (HELD_OUT, STATE) or not path.is_file():  # a pipe would hang its reader
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        # Training moves every weight, so a few chunks of each file are enough; reading 28 GB would take a minute.
        with open(path, "rb") as file:
            for chunk in range(_CHUNKS):
                file.seek(max(0, (size - _CHUNK) * chunk // (_CHUNKS - 1)))
                digest.update(file.read(_CHUNK))
                if size <= _CHUNK:
                    break
    return digest.hexdigest()


def _has_vllm() -> bool:
    # A folder that happens to be called vllm is found as a package without an origin.
    spec = importlib.util.find_spec("vllm")
    return spec is not None and spec.origin is not None


def _versions(backend: str) -> dict[str, str]:
    packages = {"vllm": ("vllm", "torch"), "transformers": ("transformers", "torch"), "server": ()}[backend]
    versions = {"python": platform.python_version()}
    for package in ("trl_miner", "math-verify", *packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
