"""The command line of `trl-miner train`: settings of the training, and options of accelerate's launcher."""

import argparse
from collections.abc import Sequence

from accelerate.commands.launch import launch_command_parser

from .recipe import make_parser, parse_words, refuse_unknown
from .recipe_files import with_recipe_file

FIRST = (  # the settings that a user sets first
    *("model_name_or_path", "dataset_name", "advantage_estimator", "learning_rate", "per_device_train_batch_size"),
    *("num_generations", "max_completion_length", "max_steps", "output_dir", "seed"),
)
_USAGE = """\
usage: trl-miner train RECIPE [options]
       trl-miner train DATA --model MODEL [options]

Train a recipe, or a data set (a file, a Hub id), from which a recipe is made first:
  trl-miner train arithmetic/miner --max_steps 10
  trl-miner train problems.csv --model MODEL
`trl-miner recipes` lists the recipes. An option overrides the recipe's key of the same name.

  --traceback  show where an error arose
  --help all   show all settings, those of TRL, transformers and accelerate, too
"""
_SCRIPT = "trl_miner.train"


def split_words(words: Sequence[str]) -> tuple[argparse.Namespace, list[str], list[str]]:
    """Split a command line of the training: its settings, its own words, and those of accelerate's launcher.

    Raises:
        ValueError: A word belongs to no option, an option is unknown, or its value is missing or of a wrong type.
    """
    words = with_recipe_file(words)
    settings, rest, parser = parse_words(words)
    launcher = launch_command_parser()
    launcher.error = parser.error
    launch, unknown = launcher.parse_known_args([*rest, _SCRIPT])
    refuse_unknown(unknown, parser, launcher._option_string_actions)
    if launch.training_script != _SCRIPT:
        refuse_unknown([launch.training_script], parser)
    flags = {word for word in rest if word.startswith("-")}
    own: list[str] = []
    is_own = True
    for word in words:
        is_own = word not in flags if word.startswith("-") else is_own
        if is_own:
            own.append(word)
    return settings, own, rest


def help_text(*, everything: bool = False) -> str:
    """Return the help of `trl-miner train`: of the settings that a user sets first and of MINER's, or of all."""
    parser = make_parser()
    known: dict[str, argparse.Action] = {}
    for action in parser._actions[1:]:  # the first is --help
        known.setdefault(action.dest, action)  # the option itself, not --no_NAME
    shown = [known.pop(name) for name in [*FIRST, *(name for name in known if name.startswith("miner_"))]]
    if everything:
        shown += [*known.values(), *(one for one in launch_command_parser()._actions if one.option_strings)]
    formatter = parser._get_formatter()
    formatter.start_section("settings")
    formatter.add_arguments(shown)
    formatter.end_section()
    return f"{_USAGE}\n{formatter.format_help()}"
