"""Keep the report of a run up to date while it trains, as a page that reloads itself.

The command reads only files, so it works on any machine that sees the folder. It ends when the run
ends, or with Ctrl-C.
"""

import argparse
from pathlib import Path
from typing import Any

from ..common.progress import finish
from . import add_command, positive


def add(commands: Any) -> None:
    option = add_command(commands, "watch", __doc__, run, reads_files_alone=True).add_argument
    option(
        "folder", metavar="RUN", help="The output_dir of a run, or rollouts that are being written."
    )
    option(
        "--seconds", type=positive, default=30, metavar="N",
        help="Seconds between two looks at the folder (default: 30).",
    )  # fmt: skip
    option("--output", metavar="FOLDER", help="Where to write (default: report in the RUN).")


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..viewing.watching import watch

    finish([watch(Path(args.folder), args.output, seconds=args.seconds)])
    return 0
