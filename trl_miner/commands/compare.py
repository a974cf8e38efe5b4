"""`trl-miner compare`: train recipes over seeds, and print one table."""

import argparse
import re
from typing import Any

from . import set_run


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        allow_abbrev=False,  # so that --seed is not taken for --seeds
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="train several recipes with several seeds, and print one table",
        usage="trl-miner compare --recipes FILE [FILE ...] --seeds N|FIRST-LAST [--steps N] [--jobs N] "
        "[--output FOLDER] [options of trl-miner train]",
        description="Train every recipe with several seeds, and print one table: Pass@k, steps to GRPO's best\n"
        "Pass@1, time and rollouts, as mean and standard deviation over the seeds.",
        epilog="Any other option goes to every `trl-miner train`: --learning_rate 2e-4. The same command again skips\n"
        "finished runs and resumes the others. Held-out problems are scored about 10 times while a run trains\n"
        "(--score_steps sets the optimizer steps between two scores).",
    )
    option = parser.add_argument
    option("--recipes", nargs="+", required=True, metavar="FILE", help="recipes, named by method")
    option(
        "--seeds", required=True, metavar="N|FIRST-LAST",
        help="5 for the seeds 1 to 5, 4-5 for these two, for example on a second machine",
    )  # fmt: skip
    option("--steps", type=int, metavar="N", help="generation batches of every run (default: the recipe's)")
    option(
        "--jobs", type=int, default=1, metavar="N",
        help="runs at a time, each on its share of the cores (default: 1, as runs on GPUs would share the GPUs)",
    )  # fmt: skip
    option(
        "--output", default="runs/compare", metavar="FOLDER",
        help="where to write comparison.md, runs.jsonl, and RECIPE/seedK with the model, scores and log.txt of "
        "each run (default: runs/compare)",
    )  # fmt: skip
    set_run(parser, run)


def run(args: argparse.Namespace, options: list[str]) -> int:
    """Run the comparison. `options` go to every training."""
    from ..compare import compare
    from ..recipe_files import say_which

    seeds = _seeds(args.seeds)
    for recipe in args.recipes:
        say_which(recipe)
    return compare(args.recipes, seeds=seeds, output=args.output, steps=args.steps, options=options, jobs=args.jobs)


def _seeds(text: str) -> range:
    """Return the seeds that `5` or `4-5` stands for."""
    numbers = re.fullmatch(r"(?:([0-9]+)-)?([0-9]+)", text.strip())
    seeds = range(int(numbers[1] or 1), int(numbers[2]) + 1) if numbers else range(0)
    if not seeds or min(seeds) < 1:
        raise ValueError(
            f"--seeds must be a number or a range, at least 1: got {text!r}. Write 5 for the seeds 1 to 5, or 4-5."
        )
    return seeds
