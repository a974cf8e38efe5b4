"""`trl-miner train`: start `accelerate launch -m trl_miner.train`."""

import argparse
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        add_help=False,
        help="train a recipe through accelerate: trl-miner train --config recipes/arithmetic/miner.yaml",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, arguments: list[str]) -> int:
    """Start the training. `arguments` are those of the script and of accelerate's launcher."""
    from ..launching.accelerate_config import LAUNCHER
    from ..launching.local import launcher_arguments
    from ..launching.supervise import run_training
    from ..progress import Progress

    with Progress("reading the recipe", unit="", leave=False):  # takes seconds, because it imports TRL
        words = launcher_arguments(arguments)
    return run_training([*LAUNCHER, *words])
