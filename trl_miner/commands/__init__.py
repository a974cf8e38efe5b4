"""The commands of `trl-miner`, a module each, with the names of `Command`.

A module imports nothing heavy at its top (no torch, no trl, no pandas): `trl-miner --help` imports
all of them. Its docstring is the command's help. `run` raises ValueError, OSError or ImportError
for a mistake of the user's: `cli.main` tells it in one line and exits with 2.
"""

import argparse
from importlib import import_module
from typing import Protocol, cast

GROUPS = {
    "Train": ("train", "launch", "doctor", "recipes"),
    "Evaluate": ("eval", "probe"),
    "Look": ("report", "inspect"),
    "Share": ("push",),
}


class Command(Protocol):
    """What a command's module has.

    A module may also set `TAKES_SETTINGS = True`: then the words that are none of its options, a
    recipe and its settings, reach `run` as `words`, for `recipe.reading.read`. It declares options
    alone, no positional argument, as argparse cannot tell a recipe from the value of a setting.
    Without it `words` is empty: `cli.main` refuses what the parser does not know.
    """

    NAME: str
    HELP: str  # one line for `trl-miner --help`, with a full stop

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's own options. `--quiet` and `--traceback` are there for all."""

    def run(self, args: argparse.Namespace, words: list[str]) -> int:
        """Do it, and return the exit code. `common.progress.finish` prints what to do next."""


def load(name: str) -> Command:
    """Import the module of a command."""
    return cast(Command, import_module(f".{name}", __name__))
