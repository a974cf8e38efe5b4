"""Compare this package's verifier, math-verify and the recorded reward on the same completions.

Disagreements come first. The command takes a run of TRL with log_completions whose reward function
logs its reference answers, rollouts of verl or prime-rl, or a CSV, JSON or Parquet file with
completions and reference answers.
"""

import argparse
from pathlib import Path
from typing import Any

from ..common.progress import finish
from . import add_command, positive


def add(commands: Any) -> None:
    option = add_command(commands, "verify", __doc__, run, reads_files_alone=True).add_argument
    option("file", metavar="FILE", help="A file of completions, or the folder of a run.")
    for name, what in (
        ("completion", "completions"),
        ("reference", "reference answers"),
        ("reward", "recorded rewards"),
    ):
        option(
            f"--{name}", metavar="COLUMN", help=f"Column with the {what} (default: found by name)."
        )
    option(
        "--threshold", type=float, default=1.0,
        help="Recorded reward from which on a completion is correct (default: 1).",
    )  # fmt: skip
    option(
        "--samples", type=positive, default=1000, metavar="N",
        help="Grade at most this many completions, drawn at random (default: 1000).",
    )  # fmt: skip
    option(
        "--show", type=positive, default=12, metavar="N", help="Completions to print (default: 12)."
    )
    option("--output", metavar="PAGE", help="Also write a page with all of them.")


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..common.text import one_line
    from ..runs.files import write_whole
    from ..viewing.pages import Section, html_page
    from ..viewing.verdicts import verify_file

    columns = {"completion": args.completion, "gold": args.reference, "reward": args.reward}
    verdicts = verify_file(args.file, columns, threshold=args.threshold, samples=args.samples)
    said = [*verdicts.notes, *verdicts.sentences()]
    print(*map(one_line, said), "", verdicts.shown(args.show).markdown(), sep="\n")
    if args.output:
        section = Section("Verdicts", [said, verdicts.shown(len(verdicts.table))])
        page = html_page(
            f"Verdicts: {Path(args.file).name}", "Written by trl-miner verify.", [section]
        )
        write_whole(Path(args.output), page)
    finish([args.output] if args.output else [])
    return 0
