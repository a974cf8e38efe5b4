"""Ask before you train: does a method push success up or down on the problems that matter to you?

Samples training prompts of the recipe and target problems, and measures the gradients of both: no
training step is made. The target is what the recipe holds out, or --target. A method for all-right
prompts helps where the rarer right answers are the better ones, and harms where they are the worse
ones; this says which it is here, for this model on these problems.
Any other option overrides the recipe's setting of the same name. The same command again goes on
with the samples that it has.
"""

import argparse
from pathlib import Path

from ..progress import Progress, finish
from . import add_command, positive


def add(commands: argparse._SubParsersAction) -> None:
    option = add_command(commands, "probe", __doc__, run).add_argument
    option("recipe", metavar="RECIPE", help="as for trl-miner train")
    option(
        "--target",
        metavar="NAME",
        help="a benchmark, or NAME=PATH, such as aime24 or mine=hard.jsonl (default: the problems"
        " that the recipe holds out, beyond the trained levels)",
    )
    option(
        "--methods",
        nargs="+",
        default=[],
        metavar="NAME",
        help="methods to ask about besides the recipe's (default: miner entropy certainty)",
    )
    for name, default, what in (
        ("prompts", 48, "training prompts"),
        ("problems", 48, "target problems"),
        ("samples", 16, "rollouts of each"),
    ):
        option(f"--{name}", type=positive, default=default, metavar="N", help=f"{what} ({default})")
    option("--output", metavar="FOLDER", help="default: runs/probe/RECIPE")


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Probe, print the table and what to do. `overrides` are settings of the recipe."""
    from ..data_recipe import with_made_recipe

    _, recipe, *overrides = with_made_recipe([args.recipe, *overrides])
    if args.target:
        overrides += ["--held_out", f"{args.target}:{args.problems}"]
    with Progress("starting", unit="", leave=False):  # importing TRL takes seconds
        from ..probe import probe_recipe

    output = Path(args.output or Path("runs", "probe", *Path(recipe).with_suffix("").parts[-2:]))
    result = probe_recipe(
        ["--config", recipe, *overrides],
        methods=args.methods,
        prompts=args.prompts,
        problems=args.problems,
        samples=max(2, args.samples),
        output=output,
    )
    print(result.text())
    finish([output / "probe.json"], f"trl-miner train {args.recipe}")
    return 0
