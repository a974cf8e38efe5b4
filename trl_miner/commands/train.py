"""`trl-miner train`: start `accelerate launch -m trl_miner.train`."""

import argparse
from typing import Any

from ..progress import Progress


def add(commands: Any) -> None:
    commands.add_parser(
        "train",
        add_help=False,
        help="train a recipe through accelerate: trl-miner train --config recipes/arithmetic/miner.yaml",
    ).set_defaults(run=run)


def run(args: argparse.Namespace, arguments: list[str]) -> int:
    """Start the training. `arguments` are those of the script and of accelerate's launcher."""
    from ..launching.accelerate_config import LAUNCHER
    from ..launching.local import launcher_arguments
    from ..launching.supervise import run_training
    from ..recipe_files import say_which

    if "--config" in arguments[:-1]:
        say_which(arguments[arguments.index("--config") + 1])
    with Progress("reading the recipe", unit="", leave=False):  # takes seconds, because it imports TRL
        command = [*LAUNCHER, *launcher_arguments(arguments)]
    return run_training(command)
