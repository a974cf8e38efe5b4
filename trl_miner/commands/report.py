"""Draw runs as one picture and one table, and tell what their records say for certain.

RUN is the folder of a run, its output_dir: of trl-miner, or of TRL's own GRPOTrainer (with
log_completions=True it tells more). Runs that differ only in their seed become one line. Only the
folders are read: no model is loaded and nothing is downloaded.
"""

import argparse
import shlex
from pathlib import Path

NAME = "report"
HELP = "Draw runs as one picture and one table, with facts."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", metavar="RUN", help="The output_dir of a run.")
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        help="Where to write (default: report in the RUN; runs/report for several).",
    )
    parser.add_argument(
        "--correct",
        metavar="NAME",
        help="The reward function that decides what is correct (default: the run's setting, or the"
        " only one).",
    )


def run(args: argparse.Namespace, words: list[str]) -> int:
    from ..common.progress import finish
    from ..report.page import inside, make_report, write_report

    report = make_report(args.folders, args.correct)
    alone = report.runs[0].folder if len(report.runs) == 1 else None
    output = args.output or (inside(alone, "report") if alone else Path("runs/report"))
    written = write_report(report, output)
    print(report.text())
    credit = [run.folder for run in report.runs if (run.folder / "credit").is_dir()]
    finish(written, [shlex.join(["trl-miner", "inspect", str(folder)]) for folder in credit])
    return 0
