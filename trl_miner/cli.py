"""The `trl-miner` command line. `commands` has a module for each command."""

import argparse
import os
import sys
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from .common.errors import EXIT_CODE, INTERRUPTED, TRACEBACK, retold, tell
from .common.importing import did_you_mean


class _Parser(argparse.ArgumentParser):
    """Raises an error, which is told in one line, where argparse prints its usage and exits."""

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        options = self._option_string_actions
        for word in (word.partition("=")[0] for word in self._words if word.startswith("--")):
            # a misspelt option, not the one that it leaves out
            if word not in options and (hint := did_you_mean(word, options)):
                raise ValueError(f"Unknown option {word}.{hint}")
        raise ValueError(f"{retold(message)} See {self.prog} --help.")


def _parser() -> tuple[argparse.ArgumentParser, Any]:
    """Return the parser of the command line, and the action that has those of the commands."""
    from . import __version__
    from .commands import modules, overview

    parser = _Parser(
        prog="trl-miner",
        usage="trl-miner COMMAND ...",
        description="MINER for TRL: train, evaluate, and see what the training did.\n\n"
        f"Start here: trl-miner train arithmetic/quick\n{overview()}\n\n"
        "`trl-miner COMMAND --help` describes a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--traceback", action="store_true", help="After any command: show where an error arose."
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"trl-miner {__version__}",
        help="Show the version.",
    )
    commands = parser.add_subparsers(
        prog="trl-miner", dest="command", required=True, help=argparse.SUPPRESS
    )
    for module in modules().values():
        module.add(commands)
    return parser, commands


def _check_command(word: str, names: Collection[str]) -> None:
    """Raise ValueError for a word that is no command."""
    if word.startswith("-") or word in names:
        return
    hint = did_you_mean(word, names)
    if "/" in word or "." in word:  # a recipe, or data
        hint = f" Did you mean `trl-miner train {word}`?"
    raise ValueError(f"No command named {word!r}.{hint} `trl-miner --help` shows all commands.")


def _refuse(words: Sequence[str], command: str, options: Collection[str]) -> None:
    """Raise ValueError for words that a command does not take."""
    word = words[0].partition("=")[0]
    what = f"Unknown option {word}." if word.startswith("-") else f"Unexpected argument {word!r}."
    hint = did_you_mean(word, options) or f" See trl-miner {command} --help."
    raise ValueError(f"{what}{hint}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return its exit code: the command's own, 2 for bad input, 130 for Ctrl-C."""
    from .common.network import go_offline_without_network
    from .common.progress import quietly
    from .common.redaction import hide_in_tracebacks, learn

    if argv is None:
        hide_in_tracebacks()
    words = list(sys.argv[1:] if argv is None else argv)
    learn(words)
    parser, commands = _parser()
    if "--traceback" in words:
        words.remove("--traceback")
        os.environ[TRACEBACK] = "1"
    if not words:
        parser.print_help()
        return EXIT_CODE
    command = words[0] if words[0] in commands.choices else ""
    try:
        _check_command(words[0], commands.choices)
        args, rest = parser.parse_known_args(words)
        if rest and not args.passes_on:
            _refuse(rest, args.command, commands.choices[args.command]._option_string_actions)
        quiet = getattr(args, "quiet", False) or "--quiet" in rest  # `train` passes it on
        if quiet or not sys.stderr.isatty():
            # Without a terminal the bars of Hugging Face libraries would fill a log with half
            # lines. This turns them off here and in child processes, before anything imports them.
            for library in ("HF_HUB", "HF_DATASETS"):
                os.environ.setdefault(f"{library}_DISABLE_PROGRESS_BARS", "1")
        if not args.reads_files_alone or getattr(args, "model", None):
            go_offline_without_network(quiet=quiet)
        with quietly(quiet):
            return args.run(args, rest)
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (
        ValueError,
        OSError,
        ImportError,
    ) as error:  # bad input, the network, the disk, a missing package
        return tell(error, command, words)
    except KeyboardInterrupt:
        print(
            f"trl-miner {command}: stopped by Ctrl-C. The same command starts or goes on again.",
            file=sys.stderr,
        )
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
