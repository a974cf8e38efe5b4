"""`trl-miner`: one command, the work in the modules it names."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    from . import __version__

    parser = argparse.ArgumentParser(
        prog="trl-miner", description="MINER for TRL: train, and see what the training did."
    )
    parser.add_argument("--version", action="version", version=f"trl-miner {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "train",
        add_help=False,
        help="train a recipe through accelerate: trl-miner train --config recipes/arithmetic/miner.yaml",
    )
    args, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    try:
        return {"train": train}[args.command](rest)
    except ValueError as error:
        print(f"trl-miner {args.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def train(arguments: list[str]) -> int:
    """Start `accelerate launch -m trl_miner.train`. What the script does not know goes to accelerate, as in TRL's own
    command line: `--num_processes 4`, or `--accelerate_config` with a file or a name that TRL ships."""
    import torch
    from accelerate.commands.launch import launch_command, launch_command_parser
    from trl.cli.accelerate_config import resolve_accelerate_config_argument

    from .train import check_recipe, make_parser

    parser = make_parser()
    check_recipe(arguments, parser)
    launch_arguments = _unknown_to(parser, arguments)
    script_arguments = _without(arguments, launch_arguments)
    launch_arguments = resolve_accelerate_config_argument(launch_arguments)
    if not torch.accelerator.is_available():
        launch_arguments = _launch_on_cpu(launch_arguments)
    launch_args = launch_command_parser().parse_args([*launch_arguments, "-m", "trl_miner.train", *script_arguments])
    try:
        launch_command(launch_args)
    except (subprocess.CalledProcessError, RuntimeError) as error:  # its own output has said why
        return getattr(error, "returncode", 1)
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
