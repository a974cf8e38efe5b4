"""Keep the report of a run that trains up to date, as a page that a browser loads anew.

It reads files alone, so it works on any machine that sees the folder. It ends when the run has, or
with Ctrl-C.
"""

import argparse
from pathlib import Path
from typing import Any

from ..progress import finish
from . import add_command, positive


def add(commands: Any) -> None:
    option = add_command(commands, "watch", __doc__, run).add_argument
    option("folder", metavar="RUN", help="output_dir of a training, or rollouts that are written")
    option(
        "--seconds", type=positive, default=30, metavar="N",
        help="between two looks at the folder (default: 30)",
    )  # fmt: skip
    option("--output", metavar="FOLDER", help="where to write (default: report in the RUN)")


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..viewing.watching import watch

    finish([watch(Path(args.folder), args.output, seconds=args.seconds)])
    return 0
