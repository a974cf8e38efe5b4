"""Read a recipe: one YAML file and a command line, by TRL's own parser."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trl import DatasetMixtureConfig, ModelConfig

    from ..data.settings import DataArguments
    from ..trainer.config import MinerGRPOConfig
    from .settings import RunArguments


@dataclass
class Recipe:
    """What was read."""

    path: Path | None  # of the recipe; None: the words alone say it, or a file of one's own
    data: DataArguments
    run: RunArguments
    config: MinerGRPOConfig
    model: ModelConfig
    mixture: DatasetMixtureConfig | None  # None: one data set


def read(words: list[str]) -> Recipe:
    """Read the words behind a command: a recipe, or a file of one's own, and settings.

    Raises:
        ValueError: There is no such recipe, a name is no setting's, or a value is wrong.
    """
    raise NotImplementedError


def read_plain(words: list[str]) -> tuple[Path | None, dict[str, Any]]:
    """Return the recipe's file and all settings by name, defaults included, without building
    `MinerGRPOConfig`: it looks at no device, so that a recipe for eight GPUs can be read anywhere.

    Raises:
        ValueError: As `read`.
    """
    raise NotImplementedError
