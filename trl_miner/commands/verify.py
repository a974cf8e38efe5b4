"""Show what trl-miner's verifier, math-verify and the recorded reward say of the same answers.

Disagreements come first. It takes a run of TRL with log_completions whose reward function logs its
golds, rollouts of verl or prime-rl, or a CSV, JSON or Parquet file with answers and golds.
"""

import argparse
from pathlib import Path
from typing import Any

from ..progress import finish
from . import add_command, positive


def add(commands: Any) -> None:
    option = add_command(commands, "verify", __doc__, run).add_argument
    option("file", metavar="FILE", help="a file of answers, or the folder of a run")
    for name, what in (
        ("completion", "the model's answers"),
        ("gold", "the golds"),
        ("reward", "the recorded rewards"),
    ):
        option(f"--{name}", metavar="COLUMN", help=f"column with {what} (default: found by name)")
    option(
        "--threshold", type=float, default=1.0,
        help="recorded reward from which on an answer is right (default: 1)",
    )  # fmt: skip
    option(
        "--samples", type=positive, default=1000, metavar="N",
        help="grade so many answers at most, by chance (default: 1000)",
    )  # fmt: skip
    option("--show", type=positive, default=12, metavar="N", help="answers to print (default: 12)")
    option("--output", metavar="PAGE", help="also write a page with all of them")


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..runs.files import write_whole
    from ..text import one_line
    from ..viewing.pages import Section, html_page
    from ..viewing.verdicts import verify_file

    columns = {name: getattr(args, name) for name in ("completion", "gold", "reward")}
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
