"""The embedded worlds, by name: problems and base models that need no download."""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from ..common.shipped import shipped_folder
from . import arithmetic


def load_beside_recipes(name: str, file: str) -> None:
    """Put a file that stands beside the recipes that use it in the place of a module of this
    folder, by which they can name its functions."""
    spec = spec_from_file_location(name, shipped_folder() / file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)


@cache
def _mirrored() -> Any:
    return import_module(".forks", __package__).mirrored()


# Each has NAME, LEVELS, PRETRAINED_LEVELS, BASE_MODEL, draw, load_dataset, solution and
# build_tokenizer.
_LOADERS: dict[str, Callable[[], Any]] = {
    arithmetic.NAME: lambda: arithmetic,
    "trl_miner/strategies": lambda: import_module(".strategies", __package__),
    "trl_miner/forks": lambda: import_module(".forks", __package__),
    "trl_miner/forks_mirror": _mirrored,
}


class _Worlds(Mapping[str, Any]):
    """The worlds, each loaded when it is named."""

    def __getitem__(self, name: str) -> Any:
        return _LOADERS[name]()

    def __contains__(self, name: object) -> bool:
        return name in _LOADERS

    def __iter__(self) -> Iterator[str]:
        return iter(_LOADERS)

    def __len__(self) -> int:
        return len(_LOADERS)


WORLDS: Mapping[str, Any] = _Worlds()
