"""Ask before you train: does a method push success up or down on the problems that matter to you?

A method for all-right prompts helps if the rarer right answers are the better ones, and harms if
they are the worse ones. This command says which it is for your model on your problems. It samples
training prompts of the recipe and target problems, and measures the gradients of both; it makes no
training step. The target is what the recipe holds out, or --target.

All options of `trl-miner train` are accepted and override the recipe. If you run the same command
again, it goes on with the samples that it has.
"""

import argparse
from pathlib import Path

from ..common.progress import Progress, finish
from . import add_command, positive


def add(commands: argparse._SubParsersAction) -> None:
    option = add_command(commands, "probe", __doc__, run, passes_on=True).add_argument
    option("recipe", metavar="RECIPE", help="A recipe or data, as for trl-miner train.")
    option(
        "--target",
        metavar="NAME",
        help="Target problems: a benchmark such as aime24, or a file such as hard.jsonl (default: the"
        " problems that the recipe holds out, beyond the trained levels).",
    )
    option(
        "--methods",
        nargs="+",
        default=[],
        metavar="NAME",
        help="Methods to ask about besides the recipe's (default: miner entropy certainty).",
    )
    for name, default, what in (
        ("prompts", 48, "Training prompts"),
        ("problems", 48, "Target problems"),
        ("samples", 16, "Completions of each"),
    ):
        option(
            f"--{name}",
            type=positive,
            default=default,
            metavar="N",
            help=f"{what} (default: {default}).",
        )
    option("--output", metavar="FOLDER", help="Where to write (default: runs/probe/RECIPE).")


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Probe, print the table and what to do. `overrides` are settings of the recipe."""
    from ..data.reading import SUFFIXES
    from ..data_recipe.first_word import with_made_recipe

    _, recipe, *overrides = with_made_recipe([args.recipe, *overrides])
    if args.samples < 2:
        raise ValueError(
            "--samples must be at least 2, to compare the rollouts of a prompt: got 1."
        )
    if args.target:
        is_path = Path(args.target).suffix.lower() in SUFFIXES and "=" not in args.target
        overrides += ["--held_out", "target=" * is_path + args.target]
    with Progress("starting", unit="", leave=False):  # importing TRL takes seconds
        from ..probe import probe_recipe

    output = Path(args.output or Path("runs", "probe", *Path(recipe).with_suffix("").parts[-2:]))
    result = probe_recipe(
        ["--config", recipe, *overrides],
        methods=args.methods,
        prompts=args.prompts,
        problems=args.problems,
        samples=args.samples,
        output=output,
    )
    print(result.text())
    finish([output / "probe.json"])
    return 0
