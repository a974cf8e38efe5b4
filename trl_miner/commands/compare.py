"""Train several recipes with several seeds, and print one table.

It has Pass@k, time and rollouts, as mean and standard deviation over the seeds. Any other option goes to
every `trl-miner train`: --learning_rate 2e-4. The same command again skips finished runs and resumes the
others. Held-out problems are scored about 10 times while a run trains (--score_steps sets the optimizer
steps between two scores).
"""

import argparse
import re
from typing import Any

from . import add_command


def add(commands: Any) -> None:
    option = add_command(commands, "compare", __doc__, run).add_argument
    option("--recipes", nargs="+", required=True, metavar="FILE", help="recipes, named by method")
    option("--seeds", required=True, metavar="N|FIRST-LAST", help="5 for the seeds 1 to 5, 4-5 for these two")
    option("--steps", type=int, metavar="N", help="generation batches of every run (default: the recipe's)")
    option("--jobs", type=int, default=1, metavar="N", help="runs at a time, which share cores and GPUs (default: 1)")
    option("--output", default="runs/compare", metavar="FOLDER", help="default: runs/compare")


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
