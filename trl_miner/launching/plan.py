"""What `trl-miner launch` would start for a recipe. Starts nothing: `--dry-run`, `doctor` and tests read it too."""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import accelerate_files as files
from .accelerate_files import Machines
from .gpus import visible_devices, visible_ids
from .server import (
    GPU_MEMORY_UTILIZATION,
    SERVER_ENV,
    is_here,
    is_loopback,
    server_address,
    server_command,
    server_url,
)

SERVER_SECONDS = 1800.0  # until a server that loads a large model answers; TRL's 240 are short for 14 B
PARTS = ("both", "server", "train")
AS_CONFIGURED = Machines()


@dataclass(frozen=True)
class Plan:
    """The commands of a run, with the GPUs and addresses that they share."""

    settings: argparse.Namespace  # of the recipe, overrides applied
    accelerate: dict[str, Any]  # contents of accelerate's configuration file; {} when none
    num_processes: int  # training processes in all, on all machines; 0 where only the server is started
    num_machines: int
    train_gpus: tuple[int, ...]  # of this machine, among the visible ones; () on a CPU
    server_gpus: tuple[int, ...]
    train: list[str]  # the command; [] where only the server is started
    train_env: dict[str, str]  # set on top of the environment
    server: list[str] | None  # None: no vLLM server to start (colocated, no vLLM, or it runs elsewhere)
    server_env: dict[str, str]
    server_url: str | None  # None: the training uses no server
    notes: list[str]  # what a user should be told
    server_seconds: float = SERVER_SECONDS  # how long to wait for the server's health
    server_listens: tuple[str, int] | None = None  # host and port of the server to start


def make_plan(
    recipe: str | Path,
    overrides: Sequence[str] = (),
    *,
    num_gpus: int | None = None,
    part: str = "both",
    server_host: str | None = None,
    num_processes: int | None = None,
    machines: Machines = AS_CONFIGURED,
    server_program: str | None = None,
    server_args: str = "",
) -> Plan:
    """The plan of a recipe: the server on the first `vllm_tensor_parallel_size` GPUs, the training on the others.

    Args:
        recipe: Path of the recipe.
        overrides: Of its settings, as on a command line: `["--learning_rate", "1e-6"]`.
        num_gpus: GPUs of each machine. None: those that this one shows.
        part: `both`, or only `server` or `train`, for runs that have each on machines of its own.
        server_host: Where the server listens and the training looks for it. None: loopback, or what the recipe names.
        num_processes: Training processes in all. None: one for each GPU that is left.
        machines: In the place of accelerate's configuration, for runs on several machines.
        server_program: In the place of `python -m vllm.entrypoints.cli.main serve MODEL`.
        server_args: Flags for the server besides.

    Raises:
        ValueError: A recipe that is none, too few GPUs, or settings that contradict each other.
    """
    from ..recipe import read_recipe

    settings = read_recipe(recipe, overrides)
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}: got {part}.")
    wants_server = bool(settings.use_vllm and settings.vllm_mode == "server")
    if part == "server" and not wants_server:
        raise ValueError(
            f"--only server needs a recipe with use_vllm: true and vllm_mode: server: got use_vllm="
            f"{settings.use_vllm}, vllm_mode={settings.vllm_mode}."
        )
    file = files.find_file(settings.accelerate_config, recipe) if settings.accelerate_config else None
    config = files.read_file(file) if file else {}
    num_machines = machines.num_machines or int(config.get("num_machines") or 1)
    notes = (
        ["trust_remote_code is on: code of the model's repository runs here."] if settings.trust_remote_code else []
    )
    url, listens = None, None
    if wants_server:
        url, listens = _addresses(settings, part, server_host, num_machines, notes)
    ids = [] if settings.use_cpu else visible_ids(num_gpus)
    server_gpus, train_gpus = _share(settings, ids, part, listens is not None)
    train: list[str] = []
    if part != "server":
        processes, train_gpus = _processes(settings, config, train_gpus, num_machines, num_processes, notes)
        launch = files.launcher(file, processes, _precision(settings, train_gpus), machines, cpu=not train_gpus)
        address = ["--vllm_server_base_url", url] if url else []
        train = [*launch, "-m", "trl_miner.train", "--config", str(recipe), *overrides, *address]
    server = None
    given = _given(recipe, overrides)
    if listens:
        memory = GPU_MEMORY_UTILIZATION
        if "vllm_gpu_memory_utilization" in given:
            memory = settings.vllm_gpu_memory_utilization
        server = server_command(
            settings, served_model(settings), *listens, memory=memory, program=server_program,
            extra=shlex.split(server_args),
        )  # fmt: skip
    return Plan(
        settings=settings,
        accelerate=config,
        num_processes=processes if train else 0,
        num_machines=num_machines,
        train_gpus=train_gpus,
        server_gpus=server_gpus,
        train=train,
        train_env=visible_devices(ids, train_gpus) if train else {},
        server=server,
        server_env=SERVER_ENV | visible_devices(ids, server_gpus) if server else {},
        server_url=url,
        notes=notes,
        server_seconds=settings.vllm_server_timeout if "vllm_server_timeout" in given else SERVER_SECONDS,
        server_listens=listens,
    )


def served_model(settings: argparse.Namespace) -> str:
    """The model as vLLM finds it. The embedded one is a folder of this machine, built here when it is missing."""
    from ..data import base_model

    return base_model.find_model(str(settings.model_name_or_path), settings.base_model_steps)


def _addresses(
    settings: argparse.Namespace, part: str, server_host: str | None, num_machines: int, notes: list[str]
) -> tuple[str, tuple[str, int] | None]:
    """Where the training finds the server, and where one that is started here listens (None: it runs elsewhere)."""
    named, port = server_address(settings)
    elsewhere = server_host is None and not is_here(named)
    if part == "train" or (elsewhere and part == "both"):
        host = server_host or named
        url = settings.vllm_server_base_url if server_host is None else None
        if part == "train" and num_machines > 1 and is_here(host):
            raise ValueError(
                f"A training on {num_machines} machines needs the name of the one that runs the vLLM server: got "
                f"{host}. Give it with --host, or as vllm_server_base_url."
            )
        if elsewhere and part == "both":
            notes.append(f"The recipe names a vLLM server on {host}: none is started here.")
        return url or server_url(host, port), None
    host = server_host or (named if elsewhere else "127.0.0.1")
    if part == "both" and num_machines > 1:
        raise ValueError(
            f"A run on {num_machines} machines has its vLLM server on one more: got part=both. Start it there with "
            f"--only server --host NAME, and the training on each of the others with --only train --host NAME."
        )
    if not is_loopback(host):
        notes.append(
            f"The vLLM server listens on {host}:{port}: its development endpoints, which need no password, are open "
            f"to that network. Use a private one."
        )
    return server_url(host, port), (host, port)


def _share(
    settings: argparse.Namespace, ids: Sequence[str], part: str, starts_server: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The GPUs of the server and those that are left for the training, as indices into the visible ones."""
    if settings.use_cpu:
        return (), ()
    for_server = int(settings.vllm_tensor_parallel_size) if starts_server else 0
    for_training = 1 if part == "both" and starts_server else 0
    if len(ids) < for_server + for_training:
        need = f"{for_server} for the vLLM server (vllm_tensor_parallel_size)"
        need += " and at least 1 for the training" if for_training else ""
        raise ValueError(
            f"The recipe needs {need}: got {len(ids)} visible GPU{'' if len(ids) == 1 else 's'}. Lower "
            f"vllm_tensor_parallel_size, or plan for another machine with --num_gpus."
        )
    everything = tuple(range(len(ids)))
    return everything[:for_server], everything[for_server:] if part != "server" else ()


def _processes(
    settings: argparse.Namespace,
    config: dict[str, Any],
    gpus: tuple[int, ...],
    num_machines: int,
    wanted: int | None,
    notes: list[str],
) -> tuple[int, tuple[int, ...]]:
    """How many training processes there are in all, and which GPUs of this machine they have."""
    if wanted is not None and (wanted < 1 or wanted % num_machines):
        raise ValueError(
            f"--num_processes must be a positive multiple of the number of machines: got {wanted} for {num_machines}."
        )
    if not gpus:
        return _cpu_processes(settings, config, wanted), ()
    if config.get("use_cpu"):
        raise ValueError("accelerate_config is for CPUs, the recipe is not: got use_cpu=False. Set use_cpu: true.")
    if config and files.is_single(config) and num_machines == 1:
        if wanted not in (None, 1):
            raise ValueError(
                f"accelerate_config starts one process (distributed_type: NO): got --num_processes {wanted}. Use "
                f"recipes/accelerate/ddp.yaml, or another one for several GPUs."
            )
        if len(gpus) > 1:  # transformers would spread one process over all that it sees
            notes.append(f"accelerate_config is for one GPU: {len(gpus) - 1} of {len(gpus)} are not used.")
        return 1, gpus[:1]
    here = len(gpus) if wanted is None else wanted // num_machines
    if here > len(gpus):
        raise ValueError(
            f"Each training process needs a GPU: got {here} processes for {len(gpus)} on this machine. Lower "
            f"--num_processes, or vllm_tensor_parallel_size."
        )
    if here < len(gpus):
        notes.append(f"--num_processes leaves {len(gpus) - here} of {len(gpus)} GPUs unused.")
    return here * num_machines, gpus[:here]


def _cpu_processes(settings: argparse.Namespace, config: dict[str, Any], wanted: int | None) -> int:
    if config and not config.get("use_cpu") and not files.is_single(config):
        raise ValueError(
            f"accelerate_config is for GPUs (distributed_type: {config.get('distributed_type')}): got "
            + ("use_cpu=True." if settings.use_cpu else "no visible GPU.")
            + f" On a CPU use {files.CPU_FILE}, or none; --num_gpus plans for another machine."
        )
    several = config.get("use_cpu") and not files.is_single(config)
    number = wanted or (int(config.get("num_processes") or 1) if several else 1)
    if number > 1 and not several:
        raise ValueError(
            f"Several processes on a CPU need accelerate_config: {files.CPU_FILE}, because without it accelerate "
            f"starts one and says nothing: got --num_processes {number}."
        )
    if number > 1 and not settings.use_cpu:
        raise ValueError(
            f"Processes on a CPU find each other only with use_cpu: true: got {number} processes and use_cpu=False. "
            f"Set it in the recipe."
        )
    return number


def _precision(settings: argparse.Namespace, gpus: tuple[int, ...]) -> str:
    if not gpus or settings.bf16 is False:
        return "fp16" if gpus and settings.fp16 else "no"
    return "fp16" if settings.fp16 else "bf16"


def _given(recipe: str | Path, overrides: Sequence[str]) -> set[str]:
    """Which settings a user has set, whatever their value."""
    import yaml

    keys = set(yaml.safe_load(Path(recipe).read_text(encoding="utf-8")))
    words = (word for word in overrides if word.startswith("--"))
    return keys | {word[2:].partition("=")[0].replace("-", "_") for word in words}
