"""The embedded worlds, by name: problems and base models that need no download."""

import sys
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType, SimpleNamespace
from typing import Any

from ..recipe_files import shipped_folder
from . import arithmetic


def _of_recipes(folder: str, name: str) -> ModuleType:
    """Load a world that stands beside the recipes that use it, as a module by which they can name its functions."""
    spec = spec_from_file_location(f"{__package__}.{name}", shipped_folder() / folder / "world.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _mirrored(forks: Any) -> SimpleNamespace:
    """Return `forks` with the shares of the ways exchanged: here the rare way is the shortcut.

    It fails on harder problems. What pays rare ways on solved prompts gains in `forks`, and must lose here.
    """
    shares = {"sound": forks.SHARES["fast"], "fast": forks.SHARES["sound"]}
    changed = {"NAME": "trl_miner/forks_mirror", "solution": partial(forks.solution, shares=shares)}
    return SimpleNamespace(**vars(forks) | changed)


_FORKS = _of_recipes("forks", "forks")
_ALL = (arithmetic, _of_recipes("study", "strategies"), _FORKS, _mirrored(_FORKS))
# Each has NAME, LEVELS, PRETRAINED_LEVELS, BASE_MODEL, draw, load_dataset, solution and build_tokenizer.
WORLDS: dict[str, Any] = {world.NAME: world for world in _ALL}
