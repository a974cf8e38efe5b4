"""Show prompts, their completions and the credit of each token as one HTML page.

The page shows each prompt with its completions side by side: the darker a token, the more credit it
got. It opens from disk and loads nothing else. A training writes the records if its recipe says
log_token_credit: 10. For a run of plain TRL with log_completions, or rollouts of verl or prime-rl,
each completion is as dark as its advantage; with --model the page shows what MINER would credit.
"""

import argparse
import shlex
from pathlib import Path
from typing import Any

from ..common.progress import finish
from . import add_command


def add(commands: Any) -> None:
    option = add_command(commands, "inspect", __doc__, run, reads_files_alone=True).add_argument
    option("folder", metavar="RUN", help="The output_dir of a run, or a file of rollouts.")
    option("--output", metavar="FILE", help="File of the page (default: RUN/inspect.html).")
    option(
        "--steps",
        nargs="+",
        type=int,
        metavar="STEP",
        help="Recorded steps to show (default: all).",
    )

    add_scoring(option)


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..viewing.inspect import read_shown, write_inspect_page

    credit = scored(args.folder, args, steps=args.steps) or read_shown(
        args.folder, steps=args.steps, quiet=False
    )
    folder = Path(args.folder)
    output = args.output or (folder if folder.is_dir() else folder.parent) / "inspect.html"
    path = write_inspect_page(credit, output, steps=args.steps, quiet=False)
    finish([path], shlex.join(["trl-miner", "report", args.folder]))
    return 0


def add_scoring(option: Any) -> None:
    """Add the options of `scored`."""
    option(
        "--model", metavar="CHECKPOINT",
        help="For rollouts of others: show what MINER would credit, with this model's log-probs unless the files have "
        "some (default: no model is loaded).",
    )  # fmt: skip
    option(
        "--temperature", type=float, default=1.0, metavar="T",
        help="Temperature at which these rollouts were sampled (default: 1).",
    )  # fmt: skip


def scored(folder: str, args: argparse.Namespace, **says: Any) -> Any:
    """Return what MINER would credit in a run, a `Credit`; None: no model is named. `says` are
    options of `score_rollouts`."""
    if args.model is None:
        return None
    from ..scored_rollouts import Scorer, score_rollouts

    return score_rollouts(folder, Scorer(args.model, args.temperature), **says)
