"""Find and read accelerate's configuration files, and build the command of its launcher."""

import os
import sys
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from ..recipe_files import shipped

LAUNCHER = (sys.executable, "-P", "-m", "trl_miner.launching.accelerate")
CPU_FILE = "recipes/accelerate/cpu_2_processes.yaml"


@dataclass(frozen=True)
class Machines:
    """Overrides of the keys of the same names in accelerate's configuration. None keeps the configured value."""

    num_machines: int | None = None
    machine_rank: int | None = None
    main_process_ip: str | None = None
    main_process_port: int | None = None

    def options(self) -> list[str]:
        """Return the overrides as options of accelerate's launcher."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def find_file(name: str, recipe: str | Path | None) -> Path:
    """Return a configuration file, relative to the recipe's folder or the current one, or one of ours or TRL's."""
    for folder in ([Path(recipe).parent] if recipe else []) + [Path()]:
        if (folder / name).is_file():
            return folder / name
    if (own := shipped().get(name.removeprefix("recipes/").removesuffix(".yaml"))) and own.parent.name == "accelerate":
        return own
    files = (Path(str(entry)) for entry in resources.files("trl.accelerate_configs").iterdir())
    of_trl = {file.stem: file for file in files if file.suffix == ".yaml"}
    if name in of_trl:
        return of_trl[name]
    raise ValueError(
        f"accelerate_config must be a file, relative to the recipe's folder or the current one, or one of TRL's: got "
        f"{name}. See recipes/accelerate/; TRL's are {', '.join(sorted(of_trl))}."
    )


def is_single_process(config: dict[str, Any]) -> bool:
    """Return whether accelerate starts one process with this configuration, whatever `num_processes` says."""
    return str(config.get("distributed_type", "NO")).upper() in ("NO", "FALSE", "MULTI_CPU")


def launcher_command(
    file: Path | None, num_processes: int, mixed_precision: str, machines: Machines, cpu: bool
) -> list[str]:
    """Return the launcher's command up to the script. Without a file it leaves accelerate nothing to guess."""
    processes = ["--num_processes", str(num_processes)]
    if file is not None:
        return [*LAUNCHER, "--config_file", str(file), *processes, *machines.options()]
    device = ["--cpu"] if cpu else ["--multi_gpu"] if num_processes > 1 else []
    command = [*LAUNCHER, *device, *processes, *replace(machines, num_machines=machines.num_machines or 1).options()]
    command += ["--mixed_precision", mixed_precision, "--dynamo_backend", "no"]
    return [*command, *(["--num_cpu_threads_per_process", cpu_threads()] if cpu else [])]


def cpu_threads() -> str:
    """Return the threads of one CPU process. With small models, more than a few only wait for each other."""
    return os.environ.get("OMP_NUM_THREADS") or str(min(4, os.cpu_count() or 1))
