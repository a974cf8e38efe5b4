"""`trl-miner doctor`: will this recipe run here, or on a machine that is only described?"""

import argparse
import os
from typing import Any

from . import add_quiet


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="check a recipe before it is started: trl-miner doctor recipes/arithmetic/miner.yaml",
        usage="trl-miner doctor RECIPE [--machine 8x80GB | FILE.json] [options of trl-miner train]",
        description="Check versions, GPUs, batch sizes, memory, ports, disk, login, data and verifier, and say what\n"
        "to change. Starts nothing. Exit code 0, or 1 when a check failed.",
        epilog="--machine describes one that is not here; what cannot be known of it is \"not checked\". A file\n"
        'may say more: {"gpus": 8, "gpu_memory_gb": 80, "cpu_memory_gb": 1000, "disk_free_gb": 4000,\n'
        '"versions": {"trl": "1.16.0", "vllm": "0.31.0"}}. Other options override the recipe: --learning_rate 1e-6.',
    )  # fmt: skip
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe, such as recipes/Qwen3-4B-Base/miner.yaml")
    parser.add_argument("--machine", metavar="WHAT", help="8x80GB, or a .json file (default: this machine)")
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """`overrides` are settings of the recipe."""
    from ..progress import Progress, finish

    with Progress("looking at the machine", unit="", leave=False):  # importing TRL takes most of it
        from ..launching.doctor import machine

        if not machine.hub_answers():
            os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before anything imports huggingface_hub
        from ..launching.doctor import examination
        from ..launching.doctor.context import FAILED
        from ..launching.process import format_command

    where = machine.described(args.machine) if args.machine else machine.this_machine()
    findings, context = examination.examine(args.recipe, overrides, where)
    print(f"{args.recipe} on {where.name}")
    print("\n".join(examination.lines(findings)))
    if context is not None:
        print("\n".join(examination.memory_table(context)))
    print(examination.summary(findings))
    if any(finding.status == FAILED for finding in findings):
        return 1
    finish([], format_command(["trl-miner", "launch", args.recipe, *overrides]))
    return 0
