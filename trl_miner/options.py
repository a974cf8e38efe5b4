"""The command line of `trl-miner train`: settings of the training, and options of accelerate's launcher."""

import argparse
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from accelerate.commands.launch import launch_command_parser

from .config import HEADINGS as CONFIG_HEADINGS
from .config import MinerGRPOConfig
from .methods import METHODS
from .recipe import MinerScriptArguments, make_parser, parse_words, refuse_unknown
from .recipe_files import with_recipe_file

# By the name of a setting, what it and the next ones have in common.
HEADINGS = CONFIG_HEADINGS | {
    "dataset_revision": "of the data set and its prompts",
    "reward_funcs": "of rewards, rollouts and the launch",
    "held_out": "of the held-out problems",
    "quiet": "of what is shown",
}
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

  --traceback     show where an error arose""".splitlines()
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

    `which` is "methods" for all settings of ours, in groups, or "all" for TRL's and accelerate's too.
    """
    groups = _groups()
    by_group: dict[str, list[Any]] = {}
    actions = [one for one in make_parser()._actions if not one.option_strings[0].startswith(("--no_", "-h"))]
    for action in actions:
        by_group.setdefault(groups.get(action.dest, ""), []).append(action)
    rest = [*by_group.pop(""), *(action for action in launch_command_parser()._actions if action.option_strings)]
    lines = [
        *_USAGE,
        f"  --help methods  show {sum(map(len, by_group.values()))} settings of methods, data, rewards and records",
    ]
    lines += [f"  --help all      show {len(rest)} more options, those of TRL, transformers and accelerate"]
    if which not in ("methods", "all"):
        lines += ["", "Settings to begin with:"]
        known = {action.dest: action for action in actions}
        lines += [line for name, text in FIRST.items() for line in _entry(known[name], text)]
        by_group = {heading: by_group[heading] for heading in by_group if heading == "of MINER"}
    for heading, inside in by_group.items():
        lines += ["", f"Settings {heading}:", *(line for action in inside for line in _entry(action))]
    if which == "all":
        lines += ["", "Settings of TRL and transformers, and options of accelerate's launcher:"]
        lines += [line for action in rest for line in _entry(action)]
    return "\n".join(lines)


def _groups() -> dict[str, str]:
    """Return, by the name of each setting of ours, the heading that the help shows it under."""
    own = [method for method in METHODS.values() if not method.settings_of]
    methods = {method.setting(knob): f"of {method.label}" for method in own for knob in method.knobs}
    groups, heading = {}, ""
    for cls in (MinerScriptArguments, MinerGRPOConfig):
        for name in cls.__annotations__:
            heading = HEADINGS.get(name, heading)
            groups[name] = methods.get(name, heading)
    return groups


def _entry(action: argparse.Action, text: str | None = None) -> list[str]:
    """Return the lines of the help on a setting. No command in backticks is broken across lines."""
    flag = max(action.option_strings, key=lambda flag: flag.count("_"))
    kind = "|".join(map(str, action.choices or ())) or getattr(action.type, "__name__", "").replace("string_to_", "")
    default = "" if action.default in (None, argparse.SUPPRESS) else f" (default: {action.default})"
    text = " ".join(f"{text or (action.help or '') % {'default': action.default}}{default}".split())
    whole = re.sub(r"`[^`]+`", lambda command: command[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    lines = textwrap.wrap(whole, 98, break_long_words=False, break_on_hyphens=False)
    return [f"  {flag} {kind}".rstrip(), *(f"        {line}".replace("\N{NO-BREAK SPACE}", " ") for line in lines)]
