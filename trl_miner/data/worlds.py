"""The embedded worlds, by name: problems and base models that need no download."""

from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from ..recipe_files import shipped_folder
from . import arithmetic, forks, forks_mirror


def _of_recipes(path: str) -> ModuleType:
    """Load a world that stands beside the recipes that use it."""
    spec = spec_from_file_location(f"{__name__}.{path}", shipped_folder() / f"{path}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Each has NAME, LEVELS, PRETRAINED_LEVELS, BASE_MODEL, draw, load_dataset, solution and build_tokenizer, and beside
# it, in the folder base_models, the weights of its base model.
WORLDS: dict[str, ModuleType] = {
    world.NAME: world for world in (arithmetic, _of_recipes("study/world"), forks, forks_mirror)
}
