"""`completions/*.parquet` of a run folder, which TRL writes with `log_completions: true`: rollouts, rewards."""

from collections.abc import Sequence
from pathlib import Path

FOLDER = "completions"
TEXTS = {"step", "prompt", "completion"}  # in every file
NOT_REWARDS = TEXTS | {"advantage", "images"}  # each other column is a reward function's


def completions_files(run: Path) -> list[Path]:
    """Return the files of a run, in the order of their steps."""
    return sorted((run / FOLDER).glob("*.parquet"))


def reward_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of reward functions, in their order."""
    return [name for name in names if name not in NOT_REWARDS]
