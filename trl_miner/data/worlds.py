"""The embedded worlds, by name: problems and base models that need no download."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

from ..recipe_files import shipped_folder
from . import arithmetic


def _of_recipes(folder: str, name: str) -> ModuleType:
    """Load a world that stands beside the recipes that use it, as a module by which they can name
    its functions."""
    spec = spec_from_file_location(f"{__package__}.{name}", shipped_folder() / folder / "world.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_FORKS = _of_recipes("forks", "forks")
_ALL = (arithmetic, _of_recipes("study", "strategies"), _FORKS, _FORKS.mirrored())
# Each has NAME, LEVELS, PRETRAINED_LEVELS, BASE_MODEL, draw, load_dataset, solution and
# build_tokenizer.
WORLDS: dict[str, Any] = {world.NAME: world for world in _ALL}
