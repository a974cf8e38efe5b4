"""Which processes a recipe needs, and which GPUs each of them sees: one function, `make_plan`."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

PYTHON = [sys.executable, "-P", "-m"]  # the current folder hides no package
Env = dict[str, str]


@dataclass(frozen=True)
class Plan:
    """The processes of a run on one machine."""

    # of vLLM's server, if there is one, then of the training: each a command, and what is set on
    # top of its environment
    commands: list[tuple[Env, list[str]]]
    listens: tuple[str, int] | None  # host and port of the server; None: none is started here
    server_gpus: int
    processes: int  # of the training, one for each of its GPUs
    accelerate: dict[str, Any]  # contents of accelerate's configuration; empty without one


def make_plan(
    path: Path | None,
    given: SimpleNamespace,
    words: Sequence[str],
    gpus: Sequence[str],
    *,
    trains: bool = True,
    host: str | None = None,
    server_args: str = "",
    accelerate_args: str = "",
) -> Plan:
    """Plan a recipe: the server on the first `vllm_tensor_parallel_size` GPUs, the training on as
    many of the others as divide its batch.

    Args:
        path: Of the recipe, from whose folder `accelerate_config` is seen.
        given: All settings, defaults included.
        words: A recipe and settings, as the training gets them.
        gpus: Names of those that may be used, as in CUDA_VISIBLE_DEVICES.
        trains: False for the server alone, with a copy of the model on each
            `vllm_tensor_parallel_size` of all GPUs.
        host: Where the server listens, if other machines shall reach it.
        server_args: More flags of vLLM, as a shell takes them.
        accelerate_args: More options of `accelerate launch`: of several machines, for example.

    Raises:
        ValueError: There are too few GPUs.
        OSError: There is no such file of accelerate's.
    """
    has_server = given.use_vllm and given.vllm_mode == "server"
    serves = not trains or has_server and not given.vllm_server_base_url
    size = serves * given.vllm_tensor_parallel_size
    if len(gpus) < size + trains and not given.use_cpu:
        raise ValueError(
            f"The recipe needs {size + trains} or more GPUs: there are {len(gpus)}. To plan for"
            " another machine, add --machine 8x80GB, and to launch --dry_run. Recipes for a CPU have"
            " use_cpu: true."
        )
    gpus = [] if given.use_cpu else gpus
    own = gpus[:size] if trains else gpus
    others = gpus[len(own) :]
    file = Path(path.parent if path else "", given.accelerate_config or "")
    config = yaml.safe_load(file.read_text("utf-8")) if given.accelerate_config else {}
    number = _processes(given, config, len(others))
    # over loopback go the weights, too: else vLLM waits for them on the network
    near = {"VLLM_HOST_IP": "127.0.0.1"} if serves and trains and not host else {}
    host, port = host or "127.0.0.1", given.vllm_server_port
    server = [*_server_command(given, host, port, len(own)), *shlex.split(server_args)]
    if serves:  # the training waits longer than TRL's 240 s; its ports are of this run alone
        words = [
            *words, "--vllm_server_base_url", f"http://{host}:{port}",
            "--vllm_server_timeout", "1800", "--vllm_group_port", str(port + 1),
        ]  # fmt: skip
    train = ["trl_miner.train", *words]
    if number > 1 or config or accelerate_args:
        options = ["--config_file", str(file)] if config else ["--multi_gpu", "--num_machines=1"]
        options += [f"--num_processes={number}", "--gpu_ids=all", *shlex.split(accelerate_args)]
        train = ["trl_miner.launching.start", *options, "-m", *train]
    commands = [(near | _see(own), server)] if serves else []
    commands += [(near | _see(others[:number]), PYTHON + train)] if trains else []
    return Plan(commands, (host, port) if serves else None, len(own), number, config)


def _processes(given: SimpleNamespace, config: Mapping[str, Any], gpus: int) -> int:
    """Return on how many processes a recipe trains: on GPUs the most that give all micro-batches of
    an optimizer step as many rows."""
    if given.use_cpu:
        return int(config.get("num_processes", 1))
    batch, rows = given.optimizer_batch_size or 0, given.per_device_train_batch_size
    return next((n for n in range(gpus, 0, -1) if batch % (rows * n) == 0), gpus)


def _see(gpus: Sequence[str]) -> Env:
    """Return the environment in which a process sees these GPUs alone."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}


def _server_command(given: SimpleNamespace, host: str, port: int, gpus: int) -> list[str]:
    """Return the command of `trl vllm-serve`, which starts vLLM's own server as TRL needs it, with
    as many copies of the model as its GPUs have room for."""
    size = given.vllm_tensor_parallel_size
    options = {
        "model": given.model_name_or_path,
        "revision": given.model_revision,
        "dtype": "float16" if given.fp16 else "float32" if given.bf16 is False else "bfloat16",
        "host": host,
        "port": port,
        "tensor_parallel_size": size,
        "data_parallel_size": gpus // size or 1,
        "gpu_memory_utilization": given.vllm_gpu_memory_utilization,
        "max_model_len": given.vllm_max_model_length,
        "vllm_model_impl": given.vllm_model_impl,
        "trust_remote_code": given.trust_remote_code,
        "log_level": "warning",  # no line for each request
    }
    words = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return [*PYTHON, "trl.scripts.vllm_serve", *words]
