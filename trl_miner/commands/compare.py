"""Train several recipes, or one with several methods, with several seeds, and print one table.

trl-miner compare RECIPE --methods grpo miner --seeds 5
trl-miner compare --recipes A.yaml B.yaml --seeds 5

It has Pass@k, time and rollouts, as mean and standard deviation over the seeds. Any other option
goes to every `trl-miner train`: --learning_rate 2e-4, --score_steps 15. The same command again
skips finished runs and resumes the others.

trl-miner compare RECIPE --methods grpo miner --pilot 0.2

A pilot trains a fifth of the steps, with GRPO and with each method at 5 % of the gradient, and says
for each whether the held-out problems speak for it or against it.
"""

import argparse
import re
from typing import Any

from . import add_command, positive


def add(commands: Any) -> None:
    option = add_command(commands, "compare", __doc__, run).add_argument
    option("--recipes", nargs="+", default=[], metavar="FILE", help="recipes, named by method")
    option(
        "--methods",
        nargs="+",
        default=[],
        metavar="NAME",
        help="values of advantage_estimator with which to train one recipe",
    )
    option(
        "--seeds",
        type=_seeds,
        metavar="N|FIRST-LAST",
        help="5 for the seeds 1 to 5, 4-5 for these (of a pilot, by default 1)",
    )
    option("--pilot", type=float, metavar="SHARE", help="train this share of the steps, and judge")
    option("--jobs", type=positive, default=1, metavar="N", help="runs at a time (default: 1)")
    option("--output", default="runs/compare", metavar="FOLDER", help="default: runs/compare")


def run(args: argparse.Namespace, options: list[str]) -> int:
    """Run the comparison. `options` go to every training."""
    from ..compare import compare
    from ..pilot import pilot

    if options and not options[0].startswith("-"):  # not declared: it would take options' values
        args.recipes, options = [*args.recipes, options[0]], options[1:]
    if not args.recipes:
        raise ValueError(
            "A comparison needs recipes: got none. Give RECIPE --methods grpo miner, or --recipes A"
            " B. See trl-miner compare --help."
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
        raise ValueError("A comparison needs seeds: got none. Give --seeds 5.")
    return compare(args.recipes, seeds=args.seeds, output=args.output, **more)


def _seeds(text: str) -> range:
    """Return the seeds that `5` or `4-5` stands for."""
    numbers = re.fullmatch(r"(?:([0-9]+)-)?([0-9]+)", text)
    seeds = range(int(numbers[1] or 1), int(numbers[2]) + 1) if numbers else range(0)
    if not seeds:
        raise argparse.ArgumentTypeError(
            f"must be a number above 0, or a range such as 4-5: got {text!r}"
        )
    return seeds
