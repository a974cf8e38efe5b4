"""The commands of `trl-miner`, one module each: `add` declares it, `run` does it. Importing them is quick."""

import argparse
from collections.abc import Callable


def set_run(parser: argparse.ArgumentParser, run: Callable[..., int]) -> None:
    """Set the function of a command, and add `--quiet`, which every command has and `cli.main` obeys."""
    parser.set_defaults(run=run)
    parser.add_argument(
        "--quiet", action="store_true", help="show only results, warnings and errors: no progress, no closing lines"
    )


def without_option(arguments: list[str], option: str) -> list[str]:
    """Return the arguments without an option and its value: the real command after `push --dry-run FOLDER`."""
    names = [word.partition("=")[0] for word in arguments]  # perhaps abbreviated, which argparse accepts
    place = next(i for i, name in enumerate(names) if len(name) > 2 and option.startswith(name))
    return arguments[:place] + arguments[place + (1 if "=" in arguments[place] else 2) :]
