"""Show the credit of each token of a training, prompt by prompt, as one HTML page.

Prompts by kind, their rollouts side by side, each token as dark as its credit. The page opens from
disk and loads nothing else. A training writes the records if its recipe says log_token_credit: 10.
"""

import argparse
import shlex
from pathlib import Path
from typing import Any

from ..progress import finish
from . import add_command


def add(commands: Any) -> None:
    option = add_command(commands, "inspect", __doc__, run).add_argument
    option("folder", metavar="RUN", help="output_dir of a training")
    option("--output", metavar="FILE", help="file of the page (default: RUN/inspect.html)")
    option(
        "--steps",
        nargs="+",
        type=int,
        metavar="STEP",
        help="show these recorded steps alone (default: all)",
    )


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..viewing.credit import read_credit
    from ..viewing.inspect import write_inspect_page

    credit = read_credit(args.folder, quiet=False)
    output = args.output or Path(args.folder) / "inspect.html"
    path = write_inspect_page(credit, output, steps=args.steps, quiet=False)
    finish([path], shlex.join(["trl-miner", "report", args.folder]))
    return 0
