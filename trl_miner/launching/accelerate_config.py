"""Find and read accelerate's configuration files."""

from importlib import resources
from pathlib import Path
from typing import Any

from ..recipe_files import shipped
from ..runs.files import read_yaml

CPU_FILE = "recipes/accelerate/cpu_2_processes.yaml"


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


def read_config(name: str | None, recipe: str | Path | None) -> dict[str, Any]:
    """Return the contents of `accelerate_config`; empty without one."""
    return read_yaml(find_file(name, recipe)) if name else {}


def starts_several(config: dict[str, Any]) -> bool:
    """Return whether accelerate starts several processes with a configuration, which some kinds never do."""
    return str(config.get("distributed_type", "NO")).upper() not in ("NO", "FALSE", "MULTI_CPU")
