"""`trl-miner inspect`: one page of what each token of a training was paid."""

import argparse
import shlex
import sys
import webbrowser
from pathlib import Path
from typing import Any

from . import add_quiet

LARGE = 100 * 2**20  # bytes; a browser still opens it, slowly


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "inspect",
        help="see which tokens were paid, prompt by prompt: trl-miner inspect runs/miner",
        description="Write one HTML page of the token records of a training: prompts by kind, their rollouts side by "
        "side, each token as dark as its credit, and the tokens that are paid most. It opens from disk and loads "
        "nothing.",
        epilog="The records are made by a training with log_token_credit: true in its recipe.",
    )
    parser.add_argument("folder", metavar="RUN", help="output folder of a training")
    parser.add_argument("--output", metavar="FILE", help="the page (default: RUN/inspect.html)")
    parser.add_argument(
        "--max-rollouts", type=int, metavar="N",
        help="show at most so many, whole prompts spread over steps and kinds (default: all)",
    )  # fmt: skip
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..progress import finish
    from ..viewing.credit import read_credit
    from ..viewing.inspect import write_inspect_page

    credit = read_credit(args.folder, quiet=False)
    for note in credit.notes:
        print(f"trl-miner inspect: {note}", file=sys.stderr)
    output = Path(args.output) if args.output else Path(args.folder) / "inspect.html"
    path = write_inspect_page(credit, output, max_rollouts=args.max_rollouts, quiet=False)
    if path.stat().st_size > LARGE:
        megabytes = path.stat().st_size / 2**20
        print(f"trl-miner inspect: the page has {megabytes:.0f} MiB. --max-rollouts N shows fewer.", file=sys.stderr)
    finish([path], shlex.join(["trl-miner", "report", args.folder]))
    if args.open and not webbrowser.open(path.resolve().as_uri()):
        print(f"trl-miner inspect: no browser was found. Open {path} in one.", file=sys.stderr)
    return 0
