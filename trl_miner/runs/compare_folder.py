"""The output of `trl-miner compare`: a run folder for each recipe and seed, and files on all of them.

RECIPE/seedK/training.json    among others the recipe, the options and the seed of the run
RECIPE/seedK/log.txt          what the run printed
comparison.md                 the table of the methods
runs.jsonl                    what reports read of all runs: see `runs_file`
.lock                         held while a comparison is running
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .locks import lock_folder
from .training_record import RECORD

LOG, TABLE = "log.txt", "comparison.md"


def lock_comparison(output: Path) -> AbstractContextManager[Any]:
    """Hold the folder of a comparison."""
    rule = "--output must be a folder that no other comparison is using: {folder} is in use by {holder}."
    return lock_folder(output, f"{rule} Wait for it, or give another.")


def run_folder(output: Path, method: str, seed: int) -> Path:
    """Return the folder of a run."""
    return output / method / f"seed{seed}"


def run_folders(output: Path) -> list[Path]:
    """Return the run folders that comparisons have begun: methods by name, seeds by number."""

    def place(folder: Path) -> tuple[str, int, str]:
        digits = folder.name.removeprefix("seed")
        return folder.parent.name, int(digits) if digits.isdecimal() else 0, folder.name

    return sorted((path.parent for path in output.glob(f"*/seed*/{RECORD}")), key=place)
