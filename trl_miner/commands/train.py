"""`trl-miner train`: start `python -m trl_miner.launching.local`. This process stays light: it
loads no TRL."""

import argparse
from typing import Any

HELP = (
    "Train a recipe, or your own data: trl-miner train arithmetic/miner, trl-miner train DATA.csv"
    " --model M"
)
USAGE = """\
usage: trl-miner train RECIPE [options]
       trl-miner train DATA --model MODEL [options]

Train a recipe, or a data set (a file, a Hub id), from which a recipe is made first:
  trl-miner train arithmetic/miner --max_steps 10
  trl-miner train problems.csv --model MODEL
`trl-miner recipes` lists the recipes. An option overrides the recipe's key of the same name, such as

  --model_name_or_path  --dataset_name  --advantage_estimator  --learning_rate  --max_steps  --output_dir  --seed
  --per_device_train_batch_size  --num_generations  --max_completion_length

  --traceback  show where an error arose
  --help all   show all settings, those of TRL and transformers, too; `accelerate launch --help` shows accelerate's
"""


def add(commands: Any) -> None:
    commands.add_parser("train", add_help=False, help=HELP).set_defaults(run=run)


def run(args: argparse.Namespace, arguments: list[str]) -> int:
    """Start the training. `arguments` are those of the script and of accelerate's launcher."""
    if "-h" in arguments or "--help" in arguments:
        print(USAGE)
        if "all" in arguments:
            from ..recipe import make_parser

            print(make_parser().format_help().partition("\n\n")[2])
        return 0
    from ..data_recipe import with_made_recipe
    from ..launching.supervise import run_training
    from ..recipe_files import with_recipe_file

    return run_training(with_recipe_file(with_made_recipe(arguments)))
