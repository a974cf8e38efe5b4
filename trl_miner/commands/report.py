"""Draw the curves and tables of runs, as a page, pictures and Markdown.

Reward, kinds of prompt, rollouts recovered, the cap, the dose, scores; Pass@K and Maj@K against K;
methods against GRPO, with intervals. Reads only the folders: no model, no network. Runs that differ
only in their seed become one line with a band.
"""

import argparse
from typing import Any

from ..progress import finish
from . import add_command
from .inspect import add_scoring, scored


def add(commands: Any) -> None:
    option = add_command(commands, "report", __doc__, run).add_argument
    option(
        "folders", nargs="+", metavar="RUN",
        help="output_dir of a training, --output of trl-miner compare or the runs.jsonl in it, or --output of "
        "trl-miner eval; a run of plain TRL with log_completions; rollouts of verl or prime-rl, or a file of them",
    )  # fmt: skip
    option(
        "--output", metavar="FOLDER",
        help="where to write (default: report in the RUN, or beside it if it is a file; runs/report for several)",
    )  # fmt: skip

    option(
        "--correct", metavar="NAME",
        help="of rollouts: the reward function that says what is right, or several joined by + (default: found by "
        "names and values)",
    )  # fmt: skip
    option(
        "--threshold", type=float, help="its reward from which on a rollout is right (default: 1)"
    )
    add_scoring(option)


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..viewing.report import write_report

    says: dict[str, Any] = {"correct": args.correct, "threshold": args.threshold}
    credit = scored(args.folders[0], args, **says)
    page = write_report(args.folders, args.output, credit=credit, **says)
    finish([page, page.with_name("report.md"), page.with_name("figures")])
    return 0
