"""`training.json` of a run's folder: what the run is. It holds no secret and no path of the
machine: of a local folder it keeps the last name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..recipe.reading import Recipe

RECORD = "training.json"


@dataclass(frozen=True)
class Source:
    """A model or a data set."""

    name: str  # a Hub id, or the last part of a path
    on_hub: bool


@dataclass(frozen=True)
class Record:
    """What a run is."""

    base_model: Source
    dataset: Source | None
    settings: dict[str, str]  # all of them by name, as text
    methods: tuple[str, ...]  # labels, such as "MINER"
    papers: dict[str, str]  # arXiv ids by label
    seed: int
    versions: dict[str, str]  # by package


def write_record(folder: Path, trainer: Any, recipe: Recipe) -> Record:
    """Write `training.json` of a trainer that is about to train, on one process, and return it."""
    raise NotImplementedError


def read_record(folder: str | Path) -> Record | None:
    """Return what a run is; None: the folder has no `training.json` (a run of plain TRL).

    Raises:
        ValueError: The file is damaged.
    """
    raise NotImplementedError
