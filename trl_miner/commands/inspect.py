"""Show prompts, their rollouts and the credit of each token as one HTML page.

Prompts by kind, their rollouts side by side, each token as dark as its credit. The page opens from
disk and loads nothing else. A training writes the records if its recipe says log_token_credit: 10.
Of a run of plain TRL with log_completions, or rollouts of verl or prime-rl, the page shows each
rollout as dark as its advantage.
"""

import argparse
import shlex
from pathlib import Path
from typing import Any

from ..progress import finish
from . import add_command


def add(commands: Any) -> None:
    option = add_command(commands, "inspect", __doc__, run).add_argument
    option("folder", metavar="RUN", help="output_dir of a training, or a file of rollouts")
    option("--output", metavar="FILE", help="file of the page (default: RUN/inspect.html)")
    option(
        "--steps",
        nargs="+",
        type=int,
        metavar="STEP",
        help="show these recorded steps alone (default: all)",
    )


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..viewing.inspect import read_shown, write_inspect_page

    credit = read_shown(args.folder, steps=args.steps, quiet=False)
    folder = Path(args.folder)
    output = args.output or (folder if folder.is_dir() else folder.parent) / "inspect.html"
    path = write_inspect_page(credit, output, steps=args.steps, quiet=False)
    finish([path], shlex.join(["trl-miner", "report", args.folder]))
    return 0
