"""The embedded worlds, by name: problems and base models that need no download."""

from types import ModuleType

from . import arithmetic, forks, forks_mirror, strategies

# Each has NAME, LEVELS, PRETRAINED_LEVELS, WORDING, BASE_MODEL, BUILD_TIME, draw, load_dataset, solution and
# build_tokenizer.
WORLDS: dict[str, ModuleType] = {world.NAME: world for world in (arithmetic, strategies, forks, forks_mirror)}
