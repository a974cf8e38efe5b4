"""The command line of `trl-miner train`: settings of the training, and options of accelerate's launcher."""

import argparse
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from accelerate.commands.launch import launch_command_parser

from .config import MinerGRPOConfig
from .recipe import MinerScriptArguments, make_parser, parse_words, refuse_unknown
from .recipe_files import with_recipe_file

# The settings that a user sets first, with what TRL's long texts say.
FIRST = {
    "model_name_or_path": "The model: a Hub id, a folder, or trl_miner/arithmetic for a tiny one. With DATA: --model.",
    "dataset_name": "The data set: a Hub id, a file, a folder, reasoning_gym/FAMILY, or trl_miner/arithmetic.",
    "advantage_estimator": "The method: miner, grpo, or another of `trl-miner train --help methods`.",
    "learning_rate": "The learning rate.",
    "per_device_train_batch_size": "Rollouts in a micro-batch on each device.",
    "num_generations": "Rollouts of each prompt.",
    "max_completion_length": "Tokens of a rollout at most.",
    "max_steps": "Optimizer steps; -1: as many as num_train_epochs has.",
    "output_dir": "The folder of the run.",
    "seed": "Decides the order of prompts and the rollouts.",
}
_USAGE = """\
usage: trl-miner train RECIPE [options]
       trl-miner train DATA --model MODEL [options]

Train a recipe, or a data set (a file, a Hub id), from which a recipe is made first:
  trl-miner train arithmetic/miner --max_steps 10
  trl-miner train problems.csv --model MODEL
`trl-miner recipes` lists the recipes. An option overrides the recipe's key of the same name.

  --traceback     show where an error arose
  --help methods  show the settings of methods, data, rewards and records
  --help all      show the options of TRL, transformers and accelerate, too
"""
_SCRIPT = "trl_miner.train"


def split_words(words: Sequence[str]) -> tuple[argparse.Namespace, list[str], list[str]]:
    """Split a command line of the training: its settings, its own words, and those of accelerate's launcher.

    Raises:
        ValueError: A word belongs to no option, an option is unknown, or its value is missing or of a wrong type.
    """
    words = with_recipe_file(words)
    settings, rest = parse_words(words)
    parser = launch_command_parser()
    parser.error = _refuse
    launch, unknown = parser.parse_known_args([*rest, _SCRIPT])
    refuse_unknown(unknown, parser._option_string_actions)
    if launch.training_script != _SCRIPT:
        refuse_unknown([launch.training_script])
    flags = {word for word in rest if word.startswith("-")}
    own: list[str] = []
    is_own = True
    for word in words:
        is_own = word not in flags if word.startswith("-") else is_own
        if is_own:
            own.append(word)
    return settings, own, rest


def _refuse(message: str) -> NoReturn:
    raise ValueError(f"{message.removeprefix('argument ')}. See trl-miner train --help all.")


def help_text(which: str = "") -> str:
    """Return the help of `trl-miner train`: the settings that a user sets first, with MINER's.

    `which` is "methods" for all settings of ours, or "all" for TRL's and accelerate's too.
    """
    known = {action.dest: action for action in reversed(make_parser()._actions)}  # the option itself, not --no_NAME
    del known["help"]
    own = [name for kind in (MinerScriptArguments, MinerGRPOConfig) for name in kind.__annotations__]
    if which not in ("methods", "all"):
        shown = [_entry(known[name], text) for name, text in FIRST.items()]
        return "\n".join([_USAGE, *shown, *(_entry(known[name]) for name in own if name.startswith("miner_"))])
    shown = [_entry(known.pop(name)) for name in own]
    if which == "all":
        launcher = [action for action in launch_command_parser()._actions if action.option_strings]
        shown += [_entry(action) for action in (*known.values(), *launcher)]
    return "\n".join([_USAGE, *shown])


def _entry(action: argparse.Action, text: str | None = None) -> str:
    """Return the lines of the help on a setting."""
    flag = max(action.option_strings, key=lambda flag: flag.count("_"))
    kind = "|".join(map(str, action.choices or ())) or getattr(action.type, "__name__", "").replace("string_to_", "")
    default = "" if action.default in (None, argparse.SUPPRESS) else f" (default: {action.default})"
    text = f"{text or (action.help or '') % {'default': action.default}}{default}"
    indent = " " * 8
    return (
        f"  {flag} {kind}".rstrip()
        + "\n"
        + textwrap.fill(
            text, 106, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    )
