"""Start a training without a vLLM server through accelerate's launcher: the process behind `trl-miner train`.

    python -m trl_miner.launching.local --config RECIPE --num_processes 8

It tells the training's options from accelerate's, for which it imports TRL, and then becomes the training, or starts
several.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..progress import Progress, quietly
from ..recipe_files import with_recipe_file
from ..redaction import hide_in_tracebacks, learn, redact
from ..runs.files import read_yaml
from ..threads import NOT_ASKED
from .accelerate import launch
from .accelerate_config import CPU_FILE, cpu_threads, find_file, is_single_process
from .signals import end_as

STARTER = (sys.executable, "-m", "trl_miner.launching.local")


def main(arguments: Sequence[str]) -> int:
    """Train, and return the exit code: the training's own, negative for a signal, or 2 for bad input."""
    hide_in_tracebacks()
    learn(arguments)
    try:
        with quietly("--quiet" in arguments), Progress("reading the recipe", unit="", leave=False):
            words = launcher_arguments(list(arguments))
    except (ValueError, OSError) as error:
        print(f"trl-miner train: error: {redact(str(error))}", file=sys.stderr)
        return 2
    return launch(words)


def parse_launch(arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments of `trl-miner train` as accelerate's launcher will."""
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser().parse_args(launcher_arguments(arguments))


def launcher_arguments(arguments: list[str]) -> list[str]:
    """Return the arguments of accelerate's launcher, the training script and its arguments included."""
    import torch
    from accelerate.commands.launch import launch_command_parser

    from ..recipe import check_recipe, make_parser

    parser, arguments = make_parser(), with_recipe_file(arguments)
    check_recipe(arguments, parser)
    for_script, for_launcher = split_arguments(parser, arguments)
    config, is_several_on_cpu = _accelerate_config(parser, for_script)
    is_on_cpu = not torch.accelerator.is_available() and not is_several_on_cpu
    complete = _launch_on_cpu(for_launcher) if is_on_cpu else for_launcher
    words = [*config, *complete, "-m", "trl_miner.train", *for_script]
    args = launch_command_parser().parse_args(words)
    if args.training_script != "trl_miner.train":  # accelerate takes the first stray word for a script
        raise ValueError(
            f"Every argument must belong to an option: got '{args.training_script}' alone. See trl-miner train --help."
        )
    if "OMP_NUM_THREADS" not in os.environ and (args.num_cpu_threads_per_process is None or not for_launcher):
        os.environ[NOT_ASKED] = "1"
    return words


def split_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into those of the script, which the parser knows, and those of the launcher, in order."""
    known = list(arguments)
    if "--config" in known:  # TrlParser handles it outside argparse, and its recipe may fill required options
        position = known.index("--config")
        del known[position : position + 2]
    for action in parser._actions:
        action.required = False
    for_launcher = parser.parse_known_args(known)[1]
    left, for_script = list(for_launcher), []
    for argument in arguments:
        if left and argument == left[0]:
            left.pop(0)
        else:
            for_script.append(argument)
    return for_script, for_launcher


def _accelerate_config(parser: argparse.ArgumentParser, arguments: list[str]) -> tuple[list[str], bool]:
    """Return the launcher's option for `accelerate_config`, and whether that starts several processes on a CPU."""
    name = parser.parse_known_args(arguments)[0].accelerate_config
    recipe = arguments[arguments.index("--config") + 1] if "--config" in arguments else None
    if recipe and not name:
        name = read_yaml(Path(recipe)).get("accelerate_config")
    if not name:
        return [], False
    path = find_file(name, recipe)
    config = read_yaml(path)
    return ["--config_file", str(path)], bool(config.get("use_cpu")) and not is_single_process(config)


def _launch_on_cpu(arguments: list[str]) -> list[str]:
    """Return the launcher's arguments on a machine without a GPU, where accelerate would otherwise guess and warn."""
    if "--num_processes" in arguments and arguments[arguments.index("--num_processes") + 1] != "1":
        raise ValueError(
            f"--num_processes needs a GPU: got none, and accelerate would silently start one process. For two "
            f"processes use `--accelerate_config {CPU_FILE}`, or `torchrun --nproc_per_node 2 -m trl_miner.train "
            "--config RECIPE`."
        )
    defaults = "--cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no "
    return arguments or [*defaults.split(), "--num_cpu_threads_per_process", cpu_threads()]


if __name__ == "__main__":
    sys.exit(end_as(main(sys.argv[1:])))
