"""The commands of `trl-miner`, one module each: `add` declares it, `run` does it. Importing them is
quick."""

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any

# The one list of all commands, in the order of `trl-miner --help`.
GROUPS = {
    "Train": "train launch doctor recipes sft",
    "Evaluate": "eval score compare probe try",
    "Look": "report inspect watch verify",
    "Share": "push",
    "Data": "data",
}
_MODULE_OF = {"eval": "evaluate", "try": "ask"}


def modules() -> dict[str, Any]:
    """Return the module of each command by the command's name."""
    names = " ".join(GROUPS.values()).split()
    return {name: import_module(f".{_MODULE_OF.get(name, name)}", __name__) for name in names}


def overview() -> str:
    """Return the commands by group, each with the first line of its module's docstring."""
    described = modules()
    lines = []
    for title, names in GROUPS.items():
        lines += ["", f"{title}:"]
        for name in names.split():
            text = described[name].__doc__ or name  # python -OO has no docstrings
            lines.append(f"    {name:<8}  {text.partition(chr(10))[0]}")
    return "\n".join(lines)


def add_command(
    commands: Any,
    name: str,
    text: str | None,
    run: Callable[..., int],
    *,
    passes_on: bool = False,
    reads_files_alone: bool = False,
) -> argparse.ArgumentParser:
    """Declare a command by its name, the docstring of its module, and its function, and return its
    parser.

    Args:
        passes_on: Whether options that the command does not know go to the training.
        reads_files_alone: Whether the command needs neither models nor data sets of the Hub.

    Every command has `--quiet`, which `cli.main` obeys.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        description=text or name,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # what a command does not know may be an option of the training
    )
    parser.set_defaults(run=run, passes_on=passes_on, reads_files_alone=reads_files_alone)
    parser.add_argument(
        "--quiet", action="store_true", help="Show only results, warnings and errors."
    )
    return parser


def positive(text: str) -> int:
    """Return a whole number of at least 1, for argparse."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1. Give at least 1.")
    return int(text)
