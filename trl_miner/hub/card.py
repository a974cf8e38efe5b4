"""The model card of a run: `card.jinja`, filled with the method's settings and the scores."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

CARD = "README.md"


def write_card(folder: Path, *, name: str | None = None) -> Path:
    """Write `README.md` of a run that has ended, and `training.png` beside it; return the card's
    path. `name` is the title (default: the folder's name)."""
    raise NotImplementedError


def make_card(
    folder: Path,
    record: Mapping[str, Any],
    *,
    name: str,
    evaluation: Mapping[str, Any] | None = None,
    step: int | None = None,
) -> str:
    """Return the card of a run.

    Args:
        folder: Of the run; its `held_out.json`, form of prompts and picture are read, where they are.
        record: Content of its `training.json`; may be empty.
        name: A repository on the Hub, or the last name of a folder.
        evaluation: Content of the `scores.json` of `trl-miner eval`.
        step: The optimizer step that the weights are of; None: the run's last.
    """
    raise NotImplementedError
