"""`trl-miner train`: start `accelerate launch -m trl_miner.train`."""

import argparse
import os
import subprocess
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
    from accelerate.commands.launch import launch_command

    try:
        launch_command(plan_launch(arguments))
    except (subprocess.CalledProcessError, RuntimeError) as error:  # its own output has said why
        return getattr(error, "returncode", 1)
    return 0


def plan_launch(arguments: list[str]) -> argparse.Namespace:
    """The arguments of accelerate's launcher. What the script does not know goes to it, as in TRL's own command line:
    `--num_processes 4`, or `--accelerate_config` with a file or a name that TRL ships.

    Args:
        arguments: Of `trl-miner train`.

    Returns:
        What `accelerate.commands.launch.launch_command` takes.

    Raises:
        ValueError: A recipe that is none, or a launch that would not do what it says.
    """
    import torch
    from accelerate.commands.launch import launch_command_parser
    from trl.cli.accelerate_config import resolve_accelerate_config_argument

    from ..train import check_recipe, make_parser

    parser = make_parser()
    check_recipe(arguments, parser)
    launch_arguments = _unknown_to(parser, arguments)
    script_arguments = _without(arguments, launch_arguments)
    launch_arguments = resolve_accelerate_config_argument(launch_arguments)
    if not torch.accelerator.is_available():
        launch_arguments = _launch_on_cpu(launch_arguments)
    launch_args = launch_command_parser().parse_args([*launch_arguments, "-m", "trl_miner.train", *script_arguments])
    if launch_args.training_script != "trl_miner.train":  # accelerate takes the first stray word for a script
        raise ValueError(
            f"Every argument must belong to an option: got '{launch_args.training_script}' alone. See trl-miner train "
            f"--help."
        )
    return launch_args


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
    if (
        "--num_processes" in launch_arguments
        and launch_arguments[launch_arguments.index("--num_processes") + 1] != "1"
    ):
        raise ValueError(
            "--num_processes on a machine without a GPU: accelerate would start one process and say nothing. Use "
            "`torchrun --nproc_per_node 2 -m trl_miner.train --config RECIPE` for two."
        )
    # Small models spend more than a few threads on waiting for each other.
    threads = os.environ.get("OMP_NUM_THREADS") or str(min(4, os.cpu_count() or 1))
    defaults = "--cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no "
    defaults += f"--num_cpu_threads_per_process {threads}"
    return launch_arguments or defaults.split()
