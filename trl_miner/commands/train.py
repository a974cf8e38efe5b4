"""`trl-miner train`: start `python -m trl_miner.launching.local`. This process stays light: it loads no TRL."""

import argparse
from typing import Any

HELP = "Train a recipe, or your own data: trl-miner train arithmetic/miner, trl-miner train DATA.csv --model M"


def add(commands: Any) -> None:
    commands.add_parser("train", add_help=False, help=HELP).set_defaults(run=run)


def run(args: argparse.Namespace, arguments: list[str]) -> int:
    """Start the training. `arguments` are those of the script and of accelerate's launcher."""
    if "-h" in arguments or "--help" in arguments:
        from ..options import help_text

        print(help_text(everything="all" in arguments))
        return 0
    from ..data_recipe import with_made_recipe
    from ..launching.supervise import run_training
    from ..recipe_files import with_recipe_file

    return run_training(with_recipe_file(with_made_recipe(arguments), say=True))
