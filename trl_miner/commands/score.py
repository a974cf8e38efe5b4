"""Score an evaluation again, and compare models on the same problems.

The command takes folders that trl-miner eval has written, and compares the first with the others. It
needs no model and no network.
"""

import argparse
import shlex
from pathlib import Path
from typing import Any

from ..common.progress import Progress, finish
from ..runs.eval_folder import SCORES, TABLES
from . import add_command


def add(commands: Any) -> None:
    parser = add_command(commands, "score", __doc__, run, reads_files_alone=True)
    parser.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="The --output of trl-miner eval."
    )
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of scoring, which `trl-miner eval` takes too."""
    option = parser.add_argument_group("scoring").add_argument
    option(
        "--paper",
        metavar="MODEL",
        help="Also show the paper's rows for a base model, such as Qwen3-4B-Base.",
    )


def run(args: argparse.Namespace, rest: list[str]) -> int:
    return score_and_print([Path(folder) for folder in args.folders], args)


def score_and_print(folders: list[Path], args: argparse.Namespace) -> int:
    """Score each folder, compare the first with the others, and print the results, with --paper
    beside the paper's."""
    with Progress("starting", unit="", leave=False):  # importing torch takes seconds
        from ..common.text import one_line
        from ..evaluation.graded import read_graded
        from ..evaluation.paired import compare_folders
        from ..evaluation.score import score_folder
        from ..evaluation.score_tables import (
            level_tables,
            paper_rows,
            run_name,
            score_sentences,
        )

    if args.paper is not None:
        paper_rows(args.paper)  # an unknown name should fail before the grading
    graded = []
    for folder in folders:
        graded.append(read_graded(folder))
        scores = score_folder(folder, paper=args.paper, graded=graded[-1])
        if args.paper is not None:
            print((folder / TABLES).read_text(encoding="utf-8"))
        else:
            print(
                *map(one_line, [f"{run_name(scores)} ({folder})", *score_sentences(scores)]),
                sep="\n",
                end="\n\n",
            )
            for table in level_tables(scores):
                print(f"{table.title}:\n\n{table.markdown()}")
    if len(folders) > 1:
        print(*map(one_line, compare_folders(folders, graded=graded)), sep="\n")
    written = [folder / name for folder in folders for name in (SCORES, TABLES)]
    finish(written, [shlex.join(["trl-miner", "report", *map(str, folders)])])
    return 0
