"""Start a recipe's vLLM server and its training on the GPUs of this machine, and end both together.

The server of a recipe (use_vllm: true, vllm_mode: server) gets the first vllm_tensor_parallel_size
GPUs, the training as many of the others as divide its batch. CUDA_VISIBLE_DEVICES says which may be
used. All settings of `trl-miner train` are accepted:

  trl-miner launch Qwen3-4B-Base/miner --learning_rate 1e-6

On several machines, start the server on one, and the training on each of the others:

  trl-miner launch RECIPE --only server --host n3
  trl-miner launch RECIPE --vllm_server_base_url http://n3:8000 --accelerate_args "--num_machines 2
      --num_processes 16 --machine_rank 0 --main_process_ip n1 --main_process_port 29500"

The exit code is the training's, 128 + N where signal N ended it (130: Ctrl-C, 143: SIGTERM), 1 where
the server ended first, or 2 for a mistake.
"""

import argparse
import shlex
from contextlib import suppress
from types import SimpleNamespace

from .machine import add_machine, gpus_of

NAME = "launch"
HELP = "Train with several GPUs: a vLLM server and a training that end together."
TAKES_SETTINGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry_run", action="store_true", help="Print the commands, and start nothing."
    )
    add_machine(parser)
    parser.add_argument("--only", choices=["server"], help="Start the vLLM server alone.")
    parser.add_argument("--host", help="Where the server listens (default: on this machine alone).")
    parser.add_argument(
        "--server_args", default="", help="More flags for vLLM, as one quoted argument."
    )
    parser.add_argument(
        "--accelerate_args", default="", help="More options for accelerate launch, likewise."
    )


def run(args: argparse.Namespace, words: list[str]) -> int:
    from .. import doctor
    from ..common.progress import is_quiet
    from ..common.redaction import hide
    from ..launching.plan import make_plan
    from ..launching.supervise import supervise
    from ..recipe.reading import read_plain

    if args.machine and not args.dry_run:
        raise ValueError(f"--machine {args.machine} is for --dry_run.")
    path, settings = read_plain(words)
    given, gpus = SimpleNamespace(**settings), gpus_of(args.machine)
    plan = make_plan(
        path, given, [*words, "--quiet=true"] if is_quiet() else words, [*gpus],
        trains=args.only is None, host=args.host, server_args=args.server_args,
        accelerate_args=args.accelerate_args,
    )  # fmt: skip
    for env, command in plan.commands:
        shown = [f"{name}={value}" for name, value in env.items()]
        print(hide(shlex.join(["env", *shown, *command])), flush=True)
    if plan.server_gpus and plan.processes:
        with suppress(Exception):  # an estimate of an unusual model must not end a launch
            shape, gpu = doctor.shape_of(given), min(gpus.values())
            for change, seconds in doctor.ways(shape, given, plan, gpu).items():
                print(f"# by arithmetic {seconds:.0f} s a step {change and f'with {change}'}")
    return 0 if args.dry_run else supervise(plan)
