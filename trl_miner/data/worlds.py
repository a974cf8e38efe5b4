"""The embedded worlds, by name: problems and base models that need no download."""

from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType, SimpleNamespace
from typing import Any

from ..recipe_files import shipped_folder
from . import arithmetic, forks


def _of_recipes(path: str) -> ModuleType:
    """Load a world that stands beside the recipes that use it."""
    spec = spec_from_file_location(f"{__name__}.{path}", shipped_folder() / f"{path}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _mirrored() -> SimpleNamespace:
    """Return `forks` with the shares of the ways exchanged: here the rare way is the shortcut.

    It fails on harder problems. What pays rare ways on solved prompts gains in `forks`, and must lose here.
    """
    shares = {"sound": forks.SHARES["fast"], "fast": forks.SHARES["sound"]}
    changed = {"NAME": "trl_miner/forks_mirror", "solution": partial(forks.solution, shares=shares)}
    return SimpleNamespace(**vars(forks) | changed)


# Each has NAME, LEVELS, PRETRAINED_LEVELS, BASE_MODEL, draw, load_dataset, solution and build_tokenizer, and beside
# it, in the folder base_models, the weights of its base model.
WORLDS: dict[str, Any] = {world.NAME: world for world in (arithmetic, _of_recipes("study/world"), forks, _mirrored())}
