"""The commands of `trl-miner`, one module each: `add` declares it, `run` does it. Importing them is
quick."""

import argparse
from collections.abc import Callable
from typing import Any


def add_command(
    commands: Any, name: str, text: str | None, run: Callable[..., int]
) -> argparse.ArgumentParser:
    """Declare a command by its name, the docstring of its module, and its function, and return its
    parser.

    The docstring's first line stands in the list of commands. Every command has `--quiet`, which
    `cli.main` obeys.
    """
    text = text or name  # python -OO has no docstrings
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text.partition("\n")[0].rstrip("."),
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # what a command does not know may be an option of the training
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--quiet", action="store_true", help="show only results, warnings and errors"
    )
    return parser


def positive(text: str) -> int:
    """Return a whole number of at least 1, for argparse."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1: got {text}")
    return int(text)
