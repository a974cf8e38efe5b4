"""`trl-miner compare`: recipes by seeds, and one table."""

import argparse
from typing import Any

from . import add_quiet


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        allow_abbrev=False,  # --seed is not --seeds
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="train several recipes with several seeds, and print one table",
        usage="trl-miner compare --recipes FILE [FILE ...] --seeds N [--steps N] [--jobs N] "
        "[--output FOLDER] [options of trl-miner train]",
        description="Train every recipe with the seeds 1 to N, and print one table: Pass@k,\n"
        "steps to GRPO's best Pass@1, time, rollouts; mean and standard deviation over the seeds.",
        epilog="Any other option goes to every `trl-miner train`: --learning_rate 2e-4. Called again, it skips\n"
        "finished runs and goes on with the others. Held-out problems are scored about 10 times while a run\n"
        "trains (--score_steps sets how often, in optimizer steps).",
    )
    parser.add_argument("--recipes", nargs="+", required=True, metavar="FILE", help="recipes, named by method")
    parser.add_argument("--seeds", type=int, required=True, metavar="N", help="number of seeds, at least 1")
    parser.add_argument(
        "--steps", type=int, metavar="N", help="generation batches of every run (default: what its recipe says)"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="runs at a time, each on its share of the cores (default: 1; runs on GPUs would share these)",
    )
    parser.add_argument(
        "--output",
        default="runs/compare",
        metavar="FOLDER",
        help="for comparison.md, comparison.json, and RECIPE/seedK with the model, scores and log.txt of each run "
        "(default: runs/compare)",
    )
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, options: list[str]) -> int:
    """`options` go to every training."""
    from ..compare import compare

    return compare(
        args.recipes, seeds=args.seeds, output=args.output, steps=args.steps, options=options, jobs=args.jobs
    )
