"""Draw the curves and tables of runs, as a page, pictures and Markdown.

They show the reward, the kinds of prompt, the completions with a gradient, MINER's share of the
gradient, and scores; Pass@K and Maj@K against K; and methods against GRPO, with intervals. Runs that
differ only in their seed become one line with a band. The command reads only the folders: it needs
no model and no network.
"""

import argparse
from typing import Any

from ..common.progress import finish
from . import add_command
from .inspect import add_scoring, scored


def add(commands: Any) -> None:
    option = add_command(commands, "report", __doc__, run, reads_files_alone=True).add_argument
    option(
        "folders", nargs="+", metavar="RUN",
        help="The output_dir of a run; the --output of trl-miner compare, or the runs.jsonl in it; the --output of "
        "trl-miner eval; a run of plain TRL with log_completions; rollouts of verl or prime-rl, or a file of them.",
    )  # fmt: skip
    option(
        "--output", metavar="FOLDER",
        help="Where to write (default: report in the RUN, or beside it if it is a file; runs/report for several).",
    )  # fmt: skip

    option(
        "--correct", metavar="NAME",
        help="For rollouts: the reward function that decides what is correct, or several joined by + (default: found "
        "by names and values).",
    )  # fmt: skip
    option(
        "--threshold",
        type=float,
        help="Its reward from which on a completion is correct (default: 1).",
    )
    add_scoring(option)


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..viewing.report import write_report

    says: dict[str, Any] = {"correct": args.correct, "threshold": args.threshold}
    credit = scored(args.folders[0], args, **says)
    page = write_report(args.folders, args.output, credit=credit, **says)
    finish([page, page.with_name("report.md"), page.with_name("figures")])
    return 0
