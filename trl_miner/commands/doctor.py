"""Check a recipe before you start it, and say what to change.

The command looks at packages, GPUs, memory, model, data and verifier, and estimates how long the
training takes. It starts nothing. If the recipe names code, such as a reward function of your own,
the command says so and imports it. What it cannot know of another machine, it reports as not
checked. All options of `trl-miner train` are accepted and override the recipe: --learning_rate 1e-6.

The exit code is 0, 1 if a check failed, or 2 if the recipe or an option is wrong.
"""

import argparse
from typing import Any

from ..common.progress import Progress, finish
from . import add_command


def add(commands: Any) -> None:
    option = add_command(commands, "doctor", __doc__, run, passes_on=True).add_argument
    option(
        "recipe",
        metavar="RECIPE",
        help="A recipe (a YAML file, or a name that `trl-miner recipes` shows), or data with --model.",
    )
    option("--machine", metavar="MACHINE", help="GPUs, such as 8x80GB (default: this machine).")
    option(
        "--price",
        type=float,
        metavar="P",
        help="Price of a GPU for an hour, to estimate what the training costs.",
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Print all findings and the memory estimate. `overrides` are settings of the recipe."""
    from ..data_recipe.first_word import with_made_recipe

    _, args.recipe, *overrides = with_made_recipe([args.recipe, *overrides])
    # takes seconds, because it imports TRL
    with Progress("looking at the machine", unit="", leave=False):
        from ..common.text import one_line
        from ..doctor import duration, examination
        from ..doctor.context import FAILED, described_machine, this_machine
        from ..launching.process import format_command
        from ..recipe.parsing import named_code, read_recipe

    if code := named_code(read_recipe(args.recipe, overrides)):
        print(
            f"{args.recipe} names code, which doctor imports now: {one_line(', '.join(code))}.",
            flush=True,
        )
    machine = described_machine(args.machine) if args.machine else this_machine()
    findings, context = examination.examine(args.recipe, overrides, machine)
    print(f"{args.recipe} on {machine.name}")
    print("\n".join(examination.table(findings)))
    if context is not None and any(finding.about == "memory" for finding in findings):
        print("\n".join(examination.memory_table(context)))
        print("\n".join(duration.lines(context, args.price)))
    if any(finding.status == FAILED for finding in findings):
        return 1
    training = context.parsed[0][0] if context is not None else None
    can_probe = training is not None and training.held_out and not training.asynchronous
    names = ["probe", "launch"] if can_probe else ["launch"]
    words = [["trl-miner", name, args.recipe, *overrides] for name in names]
    finish([], [format_command(command) for command in words])
    return 0
