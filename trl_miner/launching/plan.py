"""Plan the commands that `trl-miner launch` starts for a recipe. `--dry-run` and `doctor` use the
plan too."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..recipe.files import find_recipe
from ..runs.files import read_yaml
from .local import CPU_FILE, STARTER, read_config, starts_several
from .server import is_here, is_loopback, server_address, server_command, server_env, server_url

SERVER_MEMORY = 0.9  # TRL's default for a server; the setting's own default, 0.3, is for colocation
ELSEWHERE = (
    "describe another machine: trl-miner doctor --machine 8x80GB, trl-miner launch --dry-run"
    " --num_gpus 8"
)
# a server may need this to load a large model; TRL's default of 240 is short for 14 B
SERVER_SECONDS = 1800.0


@dataclass(frozen=True)
class Plan:
    """The commands of a run on one machine, with the GPUs and addresses that they share."""

    settings: argparse.Namespace  # the recipe's, overrides applied
    accelerate: dict[str, Any]  # contents of accelerate's configuration file; empty without one
    num_processes: int  # training processes; 0 if only the server is started
    train_gpus: tuple[int, ...]  # indices into the visible ones; empty on a CPU
    server_gpus: tuple[int, ...]
    train: list[str]  # the training's command; empty if only the server is started
    train_env: dict[str, str]  # set on top of the environment
    # the server's command; None if it is colocated, runs elsewhere, or is not used
    server: list[str] | None
    server_env: dict[str, str]
    server_url: str | None  # None if the training uses no server
    notes: list[str]  # for the user
    server_seconds: float = SERVER_SECONDS  # to wait until the server is healthy
    server_listens: tuple[str, int] | None = None  # host and port of the server to start


def make_plan(
    recipe: str | Path,
    overrides: Sequence[str] = (),
    *,
    num_gpus: int | None = None,
    only: str | None = None,
    server_host: str | None = None,
    server_args: str = "",
) -> Plan:
    """Plan a recipe: the server on the first `vllm_tensor_parallel_size` GPUs, the training on the
    others. A server alone has a copy of the model on each `vllm_tensor_parallel_size` of all GPUs.

    `overrides` are settings as on a command line; the other arguments are the options of `trl-miner
    launch`. Raises ValueError if the recipe cannot be read, there are too few GPUs, or settings
    contradict each other.
    """
    from ..data.base_model import find_model
    from ..recipe.parsing import read_recipe

    recipe = find_recipe(recipe)
    settings = read_recipe(recipe, overrides)
    uses_server = bool(settings.use_vllm and settings.vllm_mode == "server")
    if only == "server" and not uses_server:
        raise ValueError(
            "--only server needs a recipe with use_vllm: true and vllm_mode: server: got use_vllm="
            f"{settings.use_vllm}, vllm_mode={settings.vllm_mode}. Leave --only out."
        )
    config = read_config(settings.accelerate_config, recipe)
    trains = only != "server"
    if trains:
        _check_config(settings, config)
    notes: list[str] = []
    url, listens = _addresses(settings, only, server_host, notes) if uses_server else (None, None)
    ids = [] if settings.use_cpu else _visible_ids(num_gpus)
    visible = len(ids) if num_gpus is None else None
    server_gpus = (
        _server_gpus(settings, len(ids), trains) if listens and not settings.use_cpu else ()
    )
    train_gpus = tuple(range(len(server_gpus), len(ids))) if trains else ()
    if server_gpus and not trains and len(server_gpus) < len(ids):
        notes.append(
            f"{len(ids) - len(server_gpus)} of {len(ids)} GPUs stay unused:"
            f" vllm_tensor_parallel_size: {settings.vllm_tensor_parallel_size} does not divide them."
        )
    train: list[str] = []
    processes = 0
    if trains:
        processes = _processes(settings, config, len(train_gpus))
        _check_parallel(settings, processes)
        if processes < len(train_gpus):
            unused, train_gpus = len(train_gpus) - processes, train_gpus[:processes]
            notes.append(
                f"{unused} of {len(ids)} GPUs stay unused: optimizer_batch_size and"
                " accelerate_config decide."
            )
        address = ["--vllm_server_base_url", url] if url else []
        options = _launcher_options(config, processes, train_gpus)
        train = [*STARTER, "--config", str(recipe), *overrides, *address, *options]
    # Weights go by loopback, too: else vLLM waits for them on the network, without a password.
    is_near = listens is not None and is_loopback(listens[0]) and trains
    near = {"VLLM_HOST_IP": "127.0.0.1"} if is_near and "VLLM_HOST_IP" not in os.environ else {}
    explicit = _explicit_settings(recipe, overrides)
    server = None
    if listens:
        memory = (
            settings.vllm_gpu_memory_utilization
            if "vllm_gpu_memory_utilization" in explicit
            else SERVER_MEMORY
        )
        # an embedded one is a folder of this package
        model = find_model(str(settings.model_name_or_path))
        copies = len(server_gpus) // settings.vllm_tensor_parallel_size or 1
        server = server_command(
            settings, model, *listens, copies=copies, flags=server_args, memory=memory
        )
    return Plan(
        settings=settings,
        accelerate=config,
        num_processes=processes,
        train_gpus=train_gpus,
        server_gpus=server_gpus,
        train=train,
        train_env=near | _visible_devices(ids, train_gpus, visible) if train else {},
        server=server,
        server_env=(
            server_env(settings) | near | _visible_devices(ids, server_gpus, visible)
            if server
            else {}
        ),
        server_url=url,
        notes=notes,
        server_seconds=(
            settings.vllm_server_timeout if "vllm_server_timeout" in explicit else SERVER_SECONDS
        ),
        server_listens=listens,
    )


def _check_config(settings: argparse.Namespace, config: dict[str, Any]) -> None:
    """Raise ValueError for a configuration of accelerate with which `launch` cannot start the
    training."""
    if settings.asynchronous and str(config.get("distributed_type", "")).upper() == "DEEPSPEED":
        raise ValueError(
            "DeepSpeed does not work with asynchronous: true: got accelerate_config:"
            f" {settings.accelerate_config}. Use recipes/accelerate/ddp.yaml or fsdp2.yaml."
        )
    machines = int(config.get("num_machines") or 1)
    if machines > 1:
        raise ValueError(
            "trl-miner launch trains on one machine: got accelerate_config:"
            f" {settings.accelerate_config}, which has num_machines: {machines}. Start the server"
            " with --only server --host NAME, and the training on each of the other machines with"
            " trl-miner train; recipes/slurm/train.slurm does so."
        )
    gpus = config.get("gpu_ids")
    if gpus not in (None, "all"):  # accelerate would give the training those of the server
        raise ValueError(
            "trl-miner launch decides which GPUs the training sees: got accelerate_config:"
            f" {settings.accelerate_config}, which has gpu_ids: {gpus}. Set CUDA_VISIBLE_DEVICES in"
            " its place."
        )


def _check_parallel(settings: argparse.Namespace, processes: int) -> None:
    """Raise ValueError where vLLM, which shares the GPUs of the training, cannot be split over its
    processes."""
    parallel = int(settings.vllm_tensor_parallel_size)
    if (
        settings.use_vllm
        and settings.vllm_mode == "colocate"
        and (parallel < 1 or processes % parallel)
    ):
        raise ValueError(
            "vllm_tensor_parallel_size must divide the processes of the training with vllm_mode:"
            f" colocate: got {parallel} and {processes}. Set it to 1, or train on more GPUs."
        )


def _launcher_options(config: dict[str, Any], processes: int, gpus: Sequence[int]) -> list[str]:
    """Return what accelerate's launcher is told. Without a file it is left nothing to guess."""
    options = ["--num_processes", str(processes)]
    if config:
        return options
    if not gpus:
        return []
    several = ["--multi_gpu"] if processes > 1 else []
    return [
        *several,
        *options,
        *"--num_machines 1 --mixed_precision no --dynamo_backend no".split(),
    ]


def _addresses(
    settings: argparse.Namespace, only: str | None, server_host: str | None, notes: list[str]
) -> tuple[str, tuple[str, int] | None]:
    """Return the server's address for the training, and host and port of a server to start here
    (None: elsewhere)."""
    named, port = server_address(settings)
    if server_host is None and only is None and not is_here(named):
        notes.append(f"The recipe names a vLLM server on {named}: none is started here.")
        return settings.vllm_server_base_url or server_url(named, port), None
    host = server_host or ("127.0.0.1" if is_here(named) else named)
    if not is_loopback(host):
        notes.append(
            f"The vLLM server listens on {host}:{port}: its development endpoints, which need no"
            " password, are open to that network. Use a private one."
        )
    return server_url(host, port), (host, port)


def _visible_ids(num_gpus: int | None) -> list[str]:
    """Return the names of the GPUs, or of `num_gpus` planned ones: from CUDA_VISIBLE_DEVICES, else
    0, 1, ..."""
    listed = [
        name.strip()
        for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if name.strip()
    ]
    if num_gpus is None:
        import torch

        num_gpus = torch.cuda.device_count()
    if len(listed) < num_gpus:  # the variable is not set, or the plan is for another machine
        return [str(index) for index in range(num_gpus)]
    return listed[:num_gpus]


def _server_gpus(settings: argparse.Namespace, num_gpus: int, trains: bool) -> tuple[int, ...]:
    """Return the GPUs of the server, as indices into the visible ones: all that its copies of the
    model fill, or, where the training needs one, those of one copy."""
    number = int(settings.vllm_tensor_parallel_size)
    if number < 1:
        raise ValueError(
            f"vllm_tensor_parallel_size must be at least 1: got {number}. It is the server's GPUs."
        )
    if num_gpus < number + trains:
        raise ValueError(
            f"This recipe needs at least {number + trains} GPUs, {number} for the vLLM server"
            f" (vllm_tensor_parallel_size){' and 1 to train' * trains}; there are {num_gpus or 'none'}."
            " To preview the commands, add --dry-run --num_gpus 8. To check it for another machine,"
            " run trl-miner doctor --machine 8x80GB. To share one GPU, set `vllm_mode: colocate`"
            " and `vllm_tensor_parallel_size: 1`."
        )
    return tuple(range(number if trains else num_gpus - num_gpus % number))


def _visible_devices(
    ids: Sequence[str], chosen: Sequence[int], visible: int | None
) -> dict[str, str]:
    """Return the environment in which a process sees only the chosen GPUs; empty if it would see no
    others."""
    if len(chosen) == visible or not ids:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(ids[index] for index in chosen)}


def _processes(settings: argparse.Namespace, config: dict[str, Any], num_gpus: int) -> int:
    """Return on how many processes a recipe trains: one a GPU, of as many as divide its
    `optimizer_batch_size`."""
    is_for_cpu = bool(config.get("use_cpu"))
    if is_for_cpu if num_gpus else starts_several(config) and not is_for_cpu:
        kind = (
            "a CPU" if is_for_cpu else f"GPUs (distributed_type: {config.get('distributed_type')})"
        )
        raise ValueError(
            f"accelerate_config is for {kind}: got use_cpu={bool(settings.use_cpu)} and {num_gpus}"
            f" visible GPUs. Set use_cpu: true and accelerate_config: {CPU_FILE}, or {ELSEWHERE}."
        )
    if not starts_several(config) and (config or not num_gpus):
        return 1
    if not num_gpus:
        return int(config.get("num_processes") or 1)
    batch, rows = settings.optimizer_batch_size, settings.per_device_train_batch_size
    if not batch or rows < 1:
        return num_gpus
    even = (number for number in range(num_gpus, 0, -1) if batch % (rows * number) == 0)
    return next(even, num_gpus)  # none: the settings say so


def _explicit_settings(recipe: str | Path, overrides: Sequence[str]) -> set[str]:
    """Return the settings that the user has set, whatever their value."""
    keys = set(read_yaml(Path(recipe)))
    words = (word for word in overrides if word.startswith("--"))
    return keys | {word[2:].partition("=")[0].replace("-", "_") for word in words}
