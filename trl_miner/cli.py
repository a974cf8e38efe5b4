"""The `trl-miner` command line. `commands` has a module for each command."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from .errors import INTERRUPTED, TRACEBACK, tell


class _Parser(argparse.ArgumentParser):
    """Raises an error, which is told in one line, where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.rstrip('.')}. See {self.prog} --help.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return its exit code: the command's own, 2 for bad input, 130 for Ctrl-C."""
    from . import __version__
    from .commands import (
        ask,
        compare,
        data,
        doctor,
        evaluate,
        inspect,
        launch,
        probe,
        push,
        recipes,
        report,
        score,
        sft,
        train,
        verify,
        watch,
    )
    from .network import go_offline_without_network
    from .progress import quietly
    from .redaction import hide_in_tracebacks, learn

    if argv is None:
        hide_in_tracebacks()
    words = list(sys.argv[1:] if argv is None else argv)
    learn(words)
    parser = _Parser(
        prog="trl-miner",
        description="MINER for TRL: train, evaluate, and see what the training did.",
    )
    parser.add_argument(
        "--traceback", action="store_true", help="after any command: show where an error arose"
    )
    parser.add_argument("--version", action="version", version=f"trl-miner {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (
        sft,
        train,
        launch,
        doctor,
        probe,
        evaluate,
        ask,
        score,
        compare,
        inspect,
        report,
        watch,
        verify,
        recipes,
        data,
        push,
    ):
        module.add(commands)
    if "--traceback" in words:
        words.remove("--traceback")
        os.environ[TRACEBACK] = "1"
    command = words[0] if words else ""
    try:
        args, rest = parser.parse_known_args(words)
        # whose options go to the training
        if rest and args.run not in (
            ask.run,
            sft.run,
            train.run,
            launch.run,
            doctor.run,
            probe.run,
            compare.run,
            data.show,
        ):
            raise ValueError(f"Unknown option {' '.join(rest)}. See trl-miner {command} --help.")
        quiet = getattr(args, "quiet", False) or "--quiet" in rest  # `train` passes it on
        if quiet or not sys.stderr.isatty():
            # Without a terminal the bars of Hugging Face libraries would fill a log with half
            # lines. This turns them off here and in child processes, before anything imports them.
            for library in ("HF_HUB", "HF_DATASETS"):
                os.environ.setdefault(f"{library}_DISABLE_PROGRESS_BARS", "1")
        if args.run not in (inspect.run, report.run, recipes.run, score.run):
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
        return tell(error, command)
    except KeyboardInterrupt:
        print(
            f"trl-miner {command}: stopped by Ctrl-C. The same command starts or goes on again.",
            file=sys.stderr,
        )
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
