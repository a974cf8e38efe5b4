"""The commands of `trl-miner`, one module each: `add` declares it, `run` does it. Importing them is quick."""

import argparse


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add `--quiet`, which every command has and `cli.main` obeys."""
    parser.add_argument(
        "--quiet", action="store_true", help="show only results, warnings and errors: no progress, no closing lines"
    )


def without_option(arguments: list[str], option: str) -> list[str]:
    """Return the arguments without an option and its value: the real command after `push --dry-run FOLDER`."""
    place = next(i for i, word in enumerate(arguments) if _is_option(word, option))
    return arguments[:place] + arguments[place + (1 if "=" in arguments[place] else 2) :]


def _is_option(word: str, option: str) -> bool:
    name = word.partition("=")[0]  # perhaps an abbreviation, which argparse accepts
    return len(name) > 2 and option.startswith(name)
