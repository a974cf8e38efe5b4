"""From the arguments of `trl-miner eval` to a folder of samples: which model, which problems, which backend."""

import dataclasses
import hashlib
import importlib.util
import json
import platform
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..data.benchmarks import BENCHMARKS, load_with_record, user_benchmark
from ..data.problems import Benchmark
from ..data.worlds import WORLDS
from .backends import Backend, ModelSource, ServerBackend, TransformersBackend, VLLMBackend
from .generate import Prompts, Sampling, Task, generate

_WEIGHTS = ("*.safetensors", "*.bin", "*.json")
_CHUNK, _CHUNKS = 2**16, 64


@dataclass(frozen=True)
class ModelRequest:
    """Which model samples, and how it is run; the fields are the options of `trl-miner eval`."""

    model: str
    revision: str | None = None
    adapter: str | None = None
    tokenizer: str | None = None
    style: str = "auto"
    backend: str = "auto"
    base_url: str | None = None
    served_model: str | None = None
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

    @classmethod
    def from_arguments(cls, args: Namespace) -> "ModelRequest":
        return cls(**{name.name: getattr(args, name.name) for name in dataclasses.fields(cls)})

    @property
    def backend_name(self) -> str:
        """The backend, decided."""
        if self.backend != "auto":
            return self.backend
        if self.base_url:
            return "server"
        return "vllm" if _has_vllm() else "transformers"


@dataclass(frozen=True)
class ProblemRequest:
    """Which problems are sampled, and how often; the fields are the options of `trl-miner eval`."""

    benchmarks: Sequence[str]
    local: Mapping[str, str] = field(default_factory=dict)
    samples: int | None = None
    limit: int | None = None
    problem_column: str = "problem"
    answer_column: str = "answer"
    strict: bool = True

    def __post_init__(self) -> None:
        for name in ("samples", "limit"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1: got {value}.")
        names = [entry.partition("=")[0] for entry in self.benchmarks]
        if not names:
            raise ValueError(f"--benchmarks must name at least one: {', '.join(BENCHMARKS)}, or NAME=PATH.")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"--benchmarks must name each once: got {name} {names.count(name)} times.")
        for name in self.local:
            if name not in names:
                raise ValueError(f"--local must name one of --benchmarks: got {name} for {', '.join(names)}.")

    def tasks(self) -> list[Task]:
        """Their problems, loaded and checked."""
        return [self._task(*entry.partition("=")) for entry in self.benchmarks]

    def _task(self, name: str, equals: str, path: str) -> Task:
        benchmark = self._benchmark(name, path)
        problems, record = load_with_record(benchmark, self.local.get(name), strict=self.strict)
        problems = problems[: self.limit]
        return Task(benchmark, problems, self.samples or benchmark.samples, record)

    def _benchmark(self, name: str, path: str) -> Benchmark:
        if path:
            return user_benchmark(name, path, problem=self.problem_column, answer=self.answer_column)
        if name in BENCHMARKS:
            return BENCHMARKS[name]
        raise ValueError(
            f"--benchmarks must name known ones, or NAME=PATH of a file: got {name!r}. Known: {', '.join(BENCHMARKS)}."
        )


def evaluate(output: str | Path, model: ModelRequest, tasks: Sequence[Task], sampling: Sampling) -> int:
    """Sample what a folder lacks; returns the number of samples drawn. See `generate`."""
    source = _resolve(model)
    tokenizer = _load_tokenizer(model, source)
    prompts = Prompts(tokenizer, model.style, model.model)

    def load_backend() -> Backend:
        return _load_backend(model, source, tokenizer)

    settings = {
        "model": model.model,
        "revision": model.revision,
        "adapter": model.adapter,
        "backend": model.backend_name,
        "dtype": model.dtype,
        "tokenizer": model.tokenizer,
        "fingerprint": _fingerprint(model, source),
        "versions": _versions(model.backend_name),
    }
    return generate(output, tasks, load_backend, prompts, sampling, settings)


def sample_filter(model: ModelRequest, output: str | Path, source: str | None, revision: str | None) -> int:
    """One greedy answer to each training question of MedMCQA, for `build_medical`."""
    from ..data.medical import MEDMCQA_TRAIN, medmcqa_train_problems

    task = Task(MEDMCQA_TRAIN, medmcqa_train_problems(source, revision), 1)
    return evaluate(output, model, [task], Sampling(temperature=0.0, top_p=1.0, max_tokens=2048))


def _resolve(model: ModelRequest) -> ModelSource:
    """The model to load: an embedded one made, an adapter's base found."""
    if model.model in WORLDS:
        from ..data.base_model import find_model

        return ModelSource(find_model(model.model), None, model.adapter, model.dtype)
    config = Path(model.model) / "adapter_config.json"
    if config.is_file() and not model.adapter:
        base = json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"]
        return ModelSource(base, model.revision, model.model, model.dtype)
    if not Path(model.model).exists() and (model.model.startswith(("/", ".", "~")) or model.model.count("/") > 1):
        raise ValueError(f"--model must be a Hub id or a folder: got {model.model}, which is not there.")
    return ModelSource(model.model, model.revision, model.adapter, model.dtype)


def _load_tokenizer(model: ModelRequest, source: ModelSource) -> Any:
    from transformers import AutoTokenizer

    # An adapter's folder often has the tokenizer that it was trained with; the base model has one anyway.
    name = model.tokenizer or source.model
    try:
        return AutoTokenizer.from_pretrained(name, revision=None if model.tokenizer else source.revision)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--model must be a folder with a model and its tokenizer, or on the Hub and within reach: could not load "
            f"the tokenizer of {name} ({str(error).splitlines()[0]}). Give a folder, or --tokenizer."
        ) from error


def _load_backend(model: ModelRequest, source: ModelSource, tokenizer: Any) -> Backend:
    name = model.backend_name
    if name == "server":
        return ServerBackend(str(model.base_url), model.served_model, model.concurrency)
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


def _fingerprint(model: ModelRequest, source: ModelSource) -> dict[str, str | None]:
    """What tells one model from another behind the same name: a commit of the Hub, or a hash of local files."""
    if model.backend_name == "server":
        return {"served_model": model.served_model}
    found = {"model": _identity(source.model, source.revision)}
    if source.adapter:
        found["adapter"] = _identity(source.adapter, None)
    return found


def _identity(name: str, revision: str | None) -> str | None:
    folder = Path(name)
    if not folder.is_dir():
        from transformers import AutoConfig

        return getattr(AutoConfig.from_pretrained(name, revision=revision), "_commit_hash", None)
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)}):
        if path.name in ("evaluation.json", "trainer_state.json"):
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        # Training moves every weight, so that a few chunks of each file tell; reading 28 GB would take a minute.
        with open(path, "rb") as file:
            for place in range(_CHUNKS):
                file.seek(max(0, (size - _CHUNK) * place // (_CHUNKS - 1)))
                digest.update(file.read(_CHUNK))
                if size <= _CHUNK:
                    break
    return digest.hexdigest()


def _has_vllm() -> bool:
    # A folder that happens to be called vllm is a package without an origin.
    spec = importlib.util.find_spec("vllm")
    return spec is not None and spec.origin is not None


def _versions(backend: str) -> dict[str, str]:
    packages = {"vllm": ("vllm", "torch"), "transformers": ("transformers", "torch"), "server": ()}[backend]
    found = {"python": platform.python_version()}
    for package in ("trl_miner", "math-verify", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
