"""`trl-miner COMMAND`: finds the command, imports its module alone, and tells mistakes in one
line."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from . import __version__
from .commands import GROUPS, Command, load
from .common.errors import TRACEBACK, told_in_one_line
from .common.names import current_folder_last, did_you_mean
from .common.progress import be_quiet


def main(words: list[str] | None = None) -> int:
    """Run a command, and return its exit code; a mistake of the user's exits with 2."""
    name, *rest = begin(words) or ["--help"]
    names = [name for group in GROUPS.values() for name in group]
    with told_in_one_line(name if name in names else ""):
        if name in ("-h", "--help", "--version"):
            print(overview() if name != "--version" else __version__)
            return 0
        if name not in names:
            hint = did_you_mean(name, names)
            raise ValueError(f"No command named {name!r}.{hint} trl-miner --help shows all.")
        return run(load(name), rest)


def run(command: Command, words: list[str]) -> int:
    """Run a command with the words behind its name.

    Raises:
        ValueError: An option is unknown or lacks its value.
    """
    parser = make_parser(command)
    args, others = parser.parse_known_args(words)
    if others and not getattr(command, "TAKES_SETTINGS", False):
        hint = did_you_mean(others[0], parser._option_string_actions)
        raise ValueError(
            f"Unexpected {others[0]!r}.{hint} trl-miner {command.NAME} --help shows all options."
        )
    if args.quiet:
        be_quiet()
    return command.run(args, others)


def make_parser(command: Command) -> argparse.ArgumentParser:
    """Return the parser of a command's own options."""
    parser = _Parser(
        prog=f"trl-miner {command.NAME}",
        description=getattr(command, "__doc__", None) or command.HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # what a command does not know may be a setting
        add_help=False,
    )
    command.add_arguments(parser)
    topics = getattr(command, "TOPICS", {})
    parser.add_argument(
        "-h",
        "--help",
        nargs="?",
        action=_Help,
        topics=topics,
        metavar="TOPIC",
        help=f"Show this, or more on a topic: {', '.join(topics)}." if topics else "Show this.",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="Show only results, warnings and errors."
    )
    parser.add_argument("--traceback", action="store_true", help="Show where an error arose, too.")
    return parser


class _Parser(argparse.ArgumentParser):
    """Raises ValueError in the place of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}. {self.prog} --help shows all options.")


class _Help(argparse.Action):
    """Prints the help, or that on a topic, and ends the command."""

    def __init__(self, *args: Any, topics: Mapping[str, Callable[[], str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.topics = topics

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, topic: Any, option: Any = None
    ) -> None:
        print(self.topics[topic]() if topic in self.topics else parser.format_help())
        parser.exit()


def overview() -> str:
    """Return the commands by group, a line each."""
    lines = ["usage: trl-miner COMMAND [options]"]
    for title, names in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<8}  {load(name).HELP}" for name in names)]
    return "\n".join(
        [
            *lines,
            "",
            "Start here: trl-miner train arithmetic/quick",
            "trl-miner COMMAND --help explains a command.",
        ]
    )


def begin(words: list[str] | None) -> list[str]:
    """Return the words of a command line, by default this process's, without `--traceback`, which
    is obeyed. Let a terminal that lacks a letter show a question mark in its place."""
    current_folder_last()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a notebook's cannot
            stream.reconfigure(errors="replace")
    words = sys.argv[1:] if words is None else words
    if "--traceback" in words:
        os.environ[TRACEBACK] = "1"
    return [word for word in words if word != "--traceback"]


if __name__ == "__main__":
    sys.exit(main())
