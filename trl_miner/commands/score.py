"""Score samples again, and compare models with the first, on the same problems.

It takes folders that trl-miner eval has written, and needs no model and no network.
"""

import argparse
import shlex
from pathlib import Path
from typing import Any

from ..progress import Progress, finish
from ..runs.eval_folder import SCORES, TABLES
from . import add_command


def add(commands: Any) -> None:
    parser = add_command(commands, "score", __doc__, run)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="an --output of trl-miner eval")
    add_options(parser)
    parser.add_argument("--output", metavar="FILE", help="also write the comparison to FILE, as Markdown")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of scoring, which `trl-miner eval` takes too."""
    option = parser.add_argument_group("scoring").add_argument
    option("--k", type=int, metavar="K", help="K of Pass@K and Maj@K (default: the number of samples)")
    option("--repeats", type=int, default=10, metavar="R", help="draws of each majority vote (default: 10)")
    option("--resamples", type=int, default=10_000, metavar="N", help="of the bootstrap intervals (default: 10000)")
    option("--details", action="store_true", help="print all tables, not only the results in sentences")
    option("--paper", metavar="MODEL", help="also show the paper's rows for a base model, such as Qwen3-4B-Base")


def run(args: argparse.Namespace, rest: list[str]) -> int:
    return score_and_print([Path(folder) for folder in args.folders], args, args.output)


def score_and_print(folders: list[Path], args: argparse.Namespace, output: str | None = None) -> int:
    """Score each folder, compare the first with the others, and print the results, with --details all tables."""
    with Progress("starting", unit="", leave=False):  # importing torch takes seconds
        from ..evaluation.graded import read_graded
        from ..evaluation.paired import compare_folders, comparison_sentences
        from ..evaluation.paper import paper_rows
        from ..evaluation.score import score_folder
        from ..evaluation.score_tables import run_name, score_sentences
        from ..runs.files import write_whole
        from ..text import for_markdown, one_line

    if args.paper is not None:
        paper_rows(args.paper)  # an unknown name should fail before the grading
    common = {"resamples": args.resamples, "k": args.k}
    graded = []
    for folder in folders:
        graded.append(read_graded(folder, k=args.k))
        scores = score_folder(folder, repeats=args.repeats, paper=args.paper, graded=graded[-1], **common)
        if args.details or args.paper is not None:
            print((folder / "scores.md").read_text(encoding="utf-8"))
        else:
            print(*map(one_line, [f"{run_name(scores)} ({folder})", *score_sentences(scores)]), sep="\n", end="\n\n")
    written = [folder / name for folder in folders for name in (SCORES, TABLES)]
    if len(folders) > 1:
        sentences = comparison_sentences(compare_folders(folders, graded=graded, **common))
        print(*map(one_line, sentences), sep="\n")
        if output is not None:
            write_whole(Path(output), "".join(f"- {for_markdown(sentence)}\n" for sentence in sentences))
            written.append(Path(output))
    finish(written, [shlex.join(["trl-miner", "report", *map(str, folders)])])
    return 0
