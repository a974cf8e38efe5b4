"""Accelerate's configuration files, and the command of its launcher."""

import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

LAUNCHER = (sys.executable, "-m", "trl_miner.launching.accelerate")
CPU_FILE = "recipes/accelerate/cpu_2_processes.yaml"


@dataclass(frozen=True)
class Machines:
    """What to put in the place of the same keys of accelerate's configuration. None: as it says."""

    num_machines: int | None = None
    machine_rank: int | None = None
    main_process_ip: str | None = None
    main_process_port: int | None = None

    def options(self) -> list[str]:
        """What was given, as words for accelerate's launcher."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def find_file(name: str, recipe: str | Path | None) -> Path:
    """A file, seen from the recipe's folder, then from the current one, else one that TRL ships by that name.

    Raises:
        ValueError: None of them.
    """
    folders = ([Path(recipe).parent] if recipe else []) + [Path()]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    shipped = resources.files("trl.accelerate_configs")
    names = sorted(entry.name.removesuffix(".yaml") for entry in shipped.iterdir() if entry.name.endswith(".yaml"))
    if name in names:
        return Path(str(shipped / f"{name}.yaml"))
    raise ValueError(
        f"accelerate_config must be a file, seen from the recipe's folder or the current one, or one of TRL's: got "
        f"{name}. See recipes/accelerate/; TRL's are {', '.join(names)}."
    )


def read_file(path: Path) -> dict[str, Any]:
    """The contents of a configuration file.

    Raises:
        ValueError: It is no mapping.
    """
    import yaml

    contents = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(contents, dict):
        raise ValueError(f"{path} must hold accelerate's settings: got {type(contents).__name__}.")
    return contents


def is_single(config: dict[str, Any]) -> bool:
    """Does accelerate start one process with it, whatever number it names?"""
    return str(config.get("distributed_type", "NO")).upper() in ("NO", "FALSE", "MULTI_CPU")


def launcher(file: Path | None, num_processes: int, mixed_precision: str, machines: Machines, cpu: bool) -> list[str]:
    """`accelerate launch`, up to the script. Without a file everything is said, so that it guesses nothing."""
    command = [*LAUNCHER]
    if file is not None:
        return [*command, "--config_file", str(file), "--num_processes", str(num_processes), *machines.options()]
    if cpu:
        command.append("--cpu")
    elif num_processes > 1:
        command.append("--multi_gpu")
    command += ["--num_processes", str(num_processes)]
    command += machines.options() if machines.num_machines else ["--num_machines", "1", *machines.options()]
    command += ["--mixed_precision", mixed_precision, "--dynamo_backend", "no"]
    return [*command, *(["--num_cpu_threads_per_process", cpu_threads()] if cpu else [])]


def cpu_threads() -> str:
    """Threads of one CPU process: small models spend more than a few on waiting for each other."""
    import os

    return os.environ.get("OMP_NUM_THREADS") or str(min(4, os.cpu_count() or 1))
