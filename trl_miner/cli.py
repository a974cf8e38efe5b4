"""`trl-miner`: one command, the work in the modules that `commands` names."""

import argparse
import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    from . import __version__
    from .commands import compare, data, doctor, evaluate, launch, push, score, train

    parser = argparse.ArgumentParser(
        prog="trl-miner", description="MINER for TRL: train, evaluate, and see what the training did."
    )
    parser.add_argument("--version", action="version", version=f"trl-miner {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (train, launch, doctor, evaluate, score, compare, data, push):
        module.add(commands)
    args, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    if rest and args.command not in ("train", "launch", "doctor", "compare"):  # these hand options on
        parser.error(f"unrecognized arguments: {' '.join(rest)}. See trl-miner {args.command} --help")
    try:
        return args.run(args, rest)
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        # Bad input, a network or a disk: their messages say what to do, and a traceback would hide it.
        print(f"trl-miner {args.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
