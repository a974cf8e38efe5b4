"""The `trl-miner` command line. `commands` has a module for each command."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn


class _Parser(argparse.ArgumentParser):
    """Quotes no secret in its errors."""

    def error(self, message: str) -> NoReturn:
        from .redaction import redact

        super().error(redact(message))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return its exit code: the command's own, 2 for bad input, 130 for Ctrl-C."""
    from . import __version__
    from .commands import compare, data, doctor, evaluate, inspect, launch, push, recipes, report, score, train
    from .progress import quietly
    from .redaction import hide_in_tracebacks, learn, redact

    if argv is None:
        hide_in_tracebacks()
    parser = _Parser(prog="trl-miner", description="MINER for TRL: train, evaluate, and see what the training did.")
    parser.add_argument("--version", action="version", version=f"trl-miner {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (train, launch, doctor, evaluate, score, compare, inspect, report, recipes, data, push):
        module.add(commands)
    words = list(sys.argv[1:] if argv is None else argv)
    learn(words)
    args, rest = parser.parse_known_args(words)
    if rest and args.command not in ("train", "launch", "doctor", "compare"):  # these pass options on to the training
        parser.error(f"unrecognized arguments: {' '.join(rest)}. See trl-miner {args.command} --help")
    args.argv = words
    quiet = getattr(args, "quiet", False) or "--quiet" in rest  # `train` passes it on
    if quiet or not sys.stderr.isatty():
        # Without a terminal the bars of Hugging Face libraries would fill a log with half lines. This turns them off
        # here and in child processes, before anything imports them.
        for library in ("HF_HUB", "HF_DATASETS"):
            os.environ.setdefault(f"{library}_DISABLE_PROGRESS_BARS", "1")
    try:
        with quietly(quiet):
            return args.run(args, rest)
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        # Bad input, the network or the disk: the message says what to do, and a traceback would hide it.
        print(f"trl-miner {args.command}: error: {redact(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
