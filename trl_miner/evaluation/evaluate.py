"""Run an evaluation from the options of `trl-miner eval`: load the model, the problems and the backend, and sample."""

import dataclasses
import hashlib
import importlib.util
import platform
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..data.benchmarks import BENCHMARKS, find_benchmark, load_with_record, split_entry, user_benchmark
from ..data.prompt_form import find_file
from ..data.reasoning_gym import is_task
from ..data.worlds import WORLDS
from ..runs.files import read_object
from ..runs.held_out import FILE as HELD_OUT
from ..runs.models import ADAPTER
from ..runs.records import BASE_MODEL
from ..runs.trainer_state import FILE as STATE
from .asked_form import choose_form
from .backends import Backend, ModelSource, TransformersBackend, VLLMBackend
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
    batch_size: int = 32
    dtype: str = "auto"
    tensor_parallel_size: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "tensor_parallel_size", "max_model_len"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1: got {value}.")

    @classmethod
    def from_arguments(cls, args: Namespace) -> "ModelOptions":
        """Take the options from parsed arguments."""
        return cls(**{option.name: getattr(args, option.name) for option in dataclasses.fields(cls)})

    @property
    def backend_name(self) -> str:
        """The backend that runs: with "auto", vLLM where it is installed, else transformers."""
        if self.backend != "auto":
            return self.backend
        return "vllm" if _has_vllm() else "transformers"


def load_problem_sets(
    benchmarks: Sequence[str],
    local: Mapping[str, str],
    samples: int | None = None,
    limit: int | None = None,
    problem_column: str = "problem",
    answer_column: str = "answer",
    *,
    strict: bool = True,
) -> list[ProblemSet]:
    """Load and check the problems; the arguments are the options of `trl-miner eval`."""
    for option, value in (("samples", samples), ("limit", limit)):
        if value is not None and value < 1:
            raise ValueError(f"{option} must be at least 1: got {value}.")
    paths = dict(map(split_entry, benchmarks))
    names = [name for name, _ in map(split_entry, benchmarks)]
    if not names:
        raise ValueError(f"--benchmarks must name at least one: {', '.join(BENCHMARKS)}, or NAME=PATH.")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"--benchmarks must name each once: got {repeated[0]} {len(repeated)} times.")
    if strangers := [name for name in local if name not in names]:
        raise ValueError(f"--local must name one of --benchmarks: got {strangers[0]} for {', '.join(names)}.")
    problem_sets = []
    for name, path in paths.items():
        if not path and name not in BENCHMARKS and not is_task(name):
            known = ", ".join([*BENCHMARKS, "reasoning_gym/FAMILY"])
            raise ValueError(
                f"--benchmarks must name known ones, or NAME=PATH of a file: got {name!r}. Known: {known}."
            )
        benchmark = user_benchmark(name, path, problem_column, answer_column) if path else find_benchmark(name)
        problems, record = load_with_record(benchmark, local.get(name), strict=strict)
        problem_sets.append(ProblemSet(benchmark, problems[:limit], samples or benchmark.samples, record))
    return problem_sets


def evaluate(output: str | Path, model: ModelOptions, problem_sets: Sequence[ProblemSet], sampling: Sampling) -> int:
    """Draw the samples that a folder lacks, and return their number. See `generate`."""
    source = _resolve(model)
    fingerprint = _fingerprint(source)
    if not Path(source.model).is_dir():  # the same commit for all that is loaded, should the repository move
        source = dataclasses.replace(source, revision=fingerprint.get("model") or source.revision)
    tokenizer = _load_tokenizer(model, source)
    settings = {
        **{name: getattr(model, name) for name in ("model", "revision", "adapter", "dtype", "tokenizer")},
        "backend": model.backend_name,
        "fingerprint": fingerprint,
        "versions": _versions(),
    }
    options = model.style, model.system_prompt, model.prompt_template, model.chat_template_kwargs
    renderer = PromptRenderer(tokenizer, choose_form(model.model, source, tokenizer, *options))
    return generate(
        output, problem_sets, lambda: _load_backend(model, source, tokenizer), renderer, sampling, settings
    )


def sample_filter(model: ModelOptions, output: str | Path, source: str | None, revision: str | None) -> int:
    """Draw one greedy answer to each training question of MedMCQA, for `build_medical`."""
    from ..data.medical import MEDMCQA_TRAIN, medmcqa_train_problems

    questions = ProblemSet(MEDMCQA_TRAIN, medmcqa_train_problems(source, revision), 1)
    return evaluate(output, model, [questions], Sampling(temperature=0.0, top_p=1.0, max_tokens=2048))


def _resolve(model: ModelOptions) -> ModelSource:
    """Return the model to load: find an embedded one, and the base of an adapter."""
    name, revision, adapter = model.model, model.revision, model.adapter
    if name in WORLDS:
        from ..data.base_model import find_model

        name, revision = find_model(name), None
    elif (config := Path(name) / ADAPTER).is_file() and not adapter:
        name, adapter = read_object(config, record=BASE_MODEL)["base_model_name_or_path"], name
    elif not Path(name).exists() and (name.startswith(("/", ".", "~")) or name.count("/") > 1):
        raise ValueError(f"--model must be a Hub id or a folder: got {name}, which is not there.")
    return ModelSource(name, revision, adapter, model.dtype)


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
    if model.backend_name == "transformers":
        return TransformersBackend(source, tokenizer, model.batch_size)
    if not _has_vllm():
        raise ValueError(
            "--backend vllm needs vLLM, not installed here. Install trl_miner[vllm], or use --backend transformers."
        )
    names = ("tensor_parallel_size", "gpu_memory_utilization", "max_model_len")
    options = {name: getattr(model, name) for name in names if getattr(model, name) is not None}
    return VLLMBackend(source, options)


def _fingerprint(source: ModelSource) -> dict[str, str | None]:
    """Return what distinguishes models of the same name: a commit of the Hub, or a hash of local files."""
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


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("trl_miner", "math-verify", "transformers", "torch", "vllm"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
