"""The commands of `trl-miner`, one module each: `add` declares it, `run` does it. Importing them is quick."""

import argparse
from collections.abc import Callable


def set_run(parser: argparse.ArgumentParser, run: Callable[..., int]) -> None:
    """Set the function of a command, and add `--quiet`, which every command has and `cli.main` obeys."""
    parser.set_defaults(run=run)
    parser.add_argument(
        "--quiet", action="store_true", help="show only results, warnings and errors: no progress, no closing lines"
    )


def positive(text: str) -> int:
    """Return a whole number of at least 1, for argparse."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1: got {text}")
    return int(text)
