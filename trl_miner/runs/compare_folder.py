"""The output of `trl-miner compare`: a run folder for each recipe and seed, and files on all of them.

RECIPE/seedK/run.json    the recipe, the options and the seed of the run
RECIPE/seedK/log.txt     what the run printed
comparison.json          the numbers of the table; comparison.md shows them
runs.jsonl               what reports read of all runs: see `runs_file`
.lock                    held while a comparison is running
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from .files import read_object, write_json, write_whole
from .locks import lock_folder
from .records import Compared

RUN, LOG = "run.json", "log.txt"
COMPARISON, TABLE = "comparison.json", "comparison.md"
RUN_RECORD = TypeAdapter(Compared)
_ADVICE = "Give the folder of a finished run of `trl-miner compare`."


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

    return sorted((path.parent for path in output.glob(f"*/seed*/{RUN}")), key=place)


def write_run(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write `run.json`: "method", "recipe", "options", "optimizer_steps_per_step" and "seed"."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RUN, settings)


def read_run_settings(folder: Path) -> dict[str, Any]:
    """Read `run.json`."""
    return read_object(folder / RUN, _ADVICE, RUN_RECORD)


def write_table(output: Path, comparison: Mapping[str, Any], table: str) -> None:
    """Write `comparison.json` and `comparison.md`."""
    write_json(output / COMPARISON, comparison)
    write_whole(output / TABLE, table)
