"""Show the credit of each token of a training, prompt by prompt, as one HTML page.

Prompts by kind, their rollouts side by side, each token as dark as its credit, and the tokens with the
most credit. The page opens from disk and loads nothing else. A training writes the records if its recipe
says log_token_credit: 10.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from ..progress import finish
from . import add_command


def add(commands: Any) -> None:
    option = add_command(commands, "inspect", __doc__, run).add_argument
    option("folder", metavar="RUN", help="output_dir of a training")
    option("--output", metavar="FILE", help="file of the page (default: RUN/inspect.html)")
    option(
        "--max-tokens", type=int, metavar="N",
        help="show whole prompts of at most N tokens together, chosen at random (default: 1500000)",
    )  # fmt: skip
    option("--steps", nargs="+", type=int, metavar="STEP", help="show these recorded steps alone (default: all)")


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..viewing.credit import read_credit
    from ..viewing.inspect import MOST_TOKENS, write_inspect_page

    credit = read_credit(args.folder, quiet=False)
    for note in credit.notes:
        print(f"trl-miner inspect: {note}", file=sys.stderr)
    output = args.output or Path(args.folder) / "inspect.html"
    most = MOST_TOKENS if args.max_tokens is None else args.max_tokens
    path = write_inspect_page(credit, output, max_tokens=most, steps=args.steps, quiet=False)
    finish([path], shlex.join(["trl-miner", "report", args.folder]))
    return 0
