"""The command line of `trl-miner train`: settings of the training, and options of accelerate's launcher."""

import argparse
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


def help_text(*, everything: bool = False) -> str:
    """Return the help of `trl-miner train`: our settings in groups, and with `everything` all others, too."""
    groups = _groups()
    by_group: dict[str, list[Any]] = {}
    for action in make_parser()._actions:
        if not action.option_strings[0].startswith(("--no_", "-h")):
            by_group.setdefault(groups.get(action.dest, ""), []).append(action)
    rest = [*by_group.pop(""), *(action for action in launch_command_parser()._actions if action.option_strings)]
    lines = [
        "usage: trl-miner train RECIPE [options]",
        "       trl-miner train DATA --model MODEL [options]",
        "",
        "Train a recipe through accelerate: trl-miner train arithmetic/miner --max_steps 10",
        "`trl-miner recipes` lists the recipes. An option overrides the recipe's key of the same name.",
        "For a data set (a file, a Hub id), a recipe is made first: trl-miner train problems.csv --model MODEL",
        "",
        f"  --help all  show {len(rest)} more options, those of TRL, transformers and accelerate, such as "
        "--learning_rate,",
        "              --max_steps, --output_dir, --seed, --resume_from_checkpoint and --num_processes",
        "  --traceback show where an error arose",
    ]
    for heading, actions in by_group.items():
        lines += ["", f"Settings {heading}:", *(line for action in actions for line in _entry(action))]
    if everything:
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


def _entry(action: argparse.Action) -> list[str]:
    """Return the lines of the help on a setting."""
    flag = max(action.option_strings, key=lambda flag: flag.count("_"))
    kind = "|".join(map(str, action.choices or ())) or getattr(action.type, "__name__", "").replace("string_to_", "")
    default = "" if action.default in (None, argparse.SUPPRESS) else f" (default: {action.default})"
    text = " ".join(f"{(action.help or '') % {'default': action.default}}{default}".split())
    return [f"  {flag} {kind}".rstrip(), *textwrap.wrap(text, 106, initial_indent=" " * 8, subsequent_indent=" " * 8)]
