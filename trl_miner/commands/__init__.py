"""The commands of `trl-miner`, one module each: `add` declares it, `run` does it. Importing them is quick."""

import argparse


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """The option that every command has; `cli.main` heeds it."""
    parser.add_argument(
        "--quiet", action="store_true", help="show no progress and no closing lines: results, warnings and errors only"
    )


def without_option(arguments: list[str], option: str) -> list[str]:
    """`arguments` less an option and its value: what `trl-miner push --dry-run FOLDER` would do in earnest."""
    place = next(i for i, word in enumerate(arguments) if _is_option(word, option))
    return arguments[:place] + arguments[place + (1 if "=" in arguments[place] else 2) :]


def _is_option(word: str, option: str) -> bool:
    """argparse takes abbreviations too."""
    name = word.partition("=")[0]
    return len(name) > 2 and option.startswith(name)
