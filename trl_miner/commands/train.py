"""`trl-miner train`: start `accelerate launch -m trl_miner.train`."""

import argparse
from collections.abc import Sequence
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        add_help=False,
        help="train a recipe through accelerate: trl-miner train --config recipes/arithmetic/miner.yaml",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, arguments: list[str]) -> int:
    """`arguments` are those of the script and of accelerate's launcher."""
    from ..launching.accelerate_files import LAUNCHER
    from ..launching.parts import Part
    from ..launching.supervise import run_alone
    from ..progress import Progress

    with Progress("reading the recipe", unit="", leave=False):  # importing TRL takes most of it
        words = _launch_words(arguments)
    return run_alone(Part("training", [*LAUNCHER, *words], {}))


def plan_launch(arguments: list[str]) -> argparse.Namespace:
    """The arguments of accelerate's launcher. What the script does not know goes to it, as in TRL's own command line:
    `--num_processes 4`. `accelerate_config`, of the recipe or the command line, becomes its `--config_file`.

    Args:
        arguments: Of `trl-miner train`.

    Returns:
        What `accelerate.commands.launch.launch_command` takes.

    Raises:
        ValueError: A recipe that is none, or a launch that would not do what it says.
    """
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser().parse_args(_launch_words(arguments))


def _launch_words(arguments: list[str]) -> list[str]:
    import torch
    from accelerate.commands.launch import launch_command_parser

    from ..recipe import check_recipe, make_parser

    parser = make_parser()
    check_recipe(arguments, parser)
    launch_arguments = _unknown_to(parser, arguments)
    script_arguments = _without(arguments, launch_arguments)
    config, several = _accelerate_config(parser, script_arguments)
    if not torch.accelerator.is_available() and not several:
        launch_arguments = _launch_on_cpu(launch_arguments)
    words = [*config, *launch_arguments, "-m", "trl_miner.train", *script_arguments]
    script = launch_command_parser().parse_args(words).training_script
    if script != "trl_miner.train":  # accelerate takes the first stray word for a script
        raise ValueError(f"Every argument must belong to an option: got '{script}' alone. See trl-miner train --help.")
    return words


def _accelerate_config(parser: argparse.ArgumentParser, script_arguments: list[str]) -> tuple[list[str], bool]:
    """The launcher's option for the configuration that recipe or command line name, and whether it is one of several
    processes on a CPU."""
    import yaml

    from ..launching.accelerate_files import find_file, is_single, read_file

    recipe = None
    name = parser.parse_known_args(script_arguments)[0].accelerate_config
    if "--config" in script_arguments:
        recipe = script_arguments[script_arguments.index("--config") + 1]
        with open(recipe, encoding="utf-8") as file:
            name = name or yaml.safe_load(file).get("accelerate_config")
    if not name:
        return [], False
    path = find_file(name, recipe)
    contents = read_file(path)
    return ["--config_file", str(path)], bool(contents.get("use_cpu")) and not is_single(contents)


def _unknown_to(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """What argparse leaves over, in order. `--config` is TrlParser's own, and its recipe may fill required ones."""
    arguments = list(arguments)
    if "--config" in arguments:
        position = arguments.index("--config")
        del arguments[position : position + 2]
    for action in parser._actions:
        action.required = False
    return parser.parse_known_args(arguments)[1]


def _without(arguments: Sequence[str], taken_out: Sequence[str]) -> list[str]:
    """`arguments` less the subsequence `taken_out`."""
    left, kept = list(taken_out), []
    for argument in arguments:
        if left and argument == left[0]:
            left.pop(0)
        else:
            kept.append(argument)
    return kept


def _launch_on_cpu(launch_arguments: list[str]) -> list[str]:
    """Say what accelerate would otherwise guess and warn about."""
    from ..launching.accelerate_files import CPU_FILE, cpu_threads

    if (
        "--num_processes" in launch_arguments
        and launch_arguments[launch_arguments.index("--num_processes") + 1] != "1"
    ):
        raise ValueError(
            f"--num_processes on a machine without a GPU: accelerate would start one process and say nothing. Use "
            f"`--accelerate_config {CPU_FILE}` or `torchrun --nproc_per_node 2 -m trl_miner.train --config RECIPE` "
            f"for two."
        )
    defaults = "--cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no "
    defaults += f"--num_cpu_threads_per_process {cpu_threads()}"
    return launch_arguments or defaults.split()
