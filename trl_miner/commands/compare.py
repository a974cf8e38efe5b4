"""Train several recipes or methods with several seeds, and print one table.

  trl-miner compare RECIPE --methods grpo miner --seeds 5
  trl-miner compare --recipes A.yaml B.yaml --seeds 5

The table has Pass@k, time and completions, as mean and standard deviation over the seeds. All
options of `trl-miner train` are accepted and go to every run: --learning_rate 2e-4. If you run the
same command again, it skips finished runs and resumes the others.

  trl-miner compare RECIPE --methods grpo miner --pilot 0.2

A pilot trains a fifth of the steps, with GRPO and with each method at 5 % of the gradient, and says
for each whether the held-out problems speak for it or against it.
"""

import argparse
import re
from typing import Any

from . import add_command, positive


def add(commands: Any) -> None:
    option = add_command(commands, "compare", __doc__, run, passes_on=True).add_argument
    option("--recipes", nargs="+", default=[], metavar="RECIPE", help="Recipes to train.")
    option(
        "--methods",
        nargs="+",
        default=[],
        metavar="NAME",
        help="Methods (values of advantage_estimator) to train one recipe with.",
    )
    option(
        "--seeds",
        type=_seeds,
        metavar="N|FIRST-LAST",
        help="Seeds: 5 for 1 to 5, or 4-5 for these two (default for a pilot: 1).",
    )
    option(
        "--pilot",
        type=float,
        metavar="SHARE",
        help="Train only this share of the steps, and judge.",
    )
    option("--jobs", type=positive, default=1, metavar="N", help="Runs at a time (default: 1).")
    option(
        "--output",
        default="runs/compare",
        metavar="FOLDER",
        help="Folder of the runs (default: runs/compare).",
    )


def run(args: argparse.Namespace, options: list[str]) -> int:
    """Run the comparison. `options` go to every training."""
    from ..compare import compare
    from ..pilot import pilot

    if options and not options[0].startswith("-"):  # not declared: it would take options' values
        args.recipes, options = [*args.recipes, options[0]], options[1:]
    if not args.recipes:
        raise ValueError(
            "Nothing to compare. Give a recipe and methods (`trl-miner compare RECIPE --methods grpo"
            " miner --seeds 5`), or recipes (`--recipes A B`)."
        )
    more = {"options": options, "methods": args.methods, "jobs": args.jobs}
    if args.pilot is not None:
        if len(args.recipes) > 1:
            raise ValueError(
                f"A pilot takes one recipe: got {', '.join(args.recipes)}. Name methods instead, as"
                " in --methods grpo miner."
            )
        return pilot(args.recipes[0], args.pilot, seeds=args.seeds or 1, output=args.output, **more)
    if args.seeds is None:
        raise ValueError("--seeds is missing. Write --seeds 5 for the seeds 1 to 5.")
    return compare(args.recipes, seeds=args.seeds, output=args.output, **more)


def _seeds(text: str) -> range:
    """Return the seeds that `5` or `4-5` stands for."""
    numbers = re.fullmatch(r"(?:([0-9]+)-)?([0-9]+)", text)
    seeds = range(int(numbers[1] or 1), int(numbers[2]) + 1) if numbers else range(0)
    if not seeds:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number of seeds nor a range. Write 5, or 4-5"
        )
    return seeds
