"""The embedded worlds, by name: problems and base models that need no download."""

from types import ModuleType

from . import arithmetic, strategies

# Each has NAME, LEVELS, WORDING, BASE_MODEL, load_dataset, solution and build_tokenizer.
WORLDS: dict[str, ModuleType] = {world.NAME: world for world in (arithmetic, strategies)}
