"""Train with several GPUs: start a recipe's vLLM server and its training, and watch both.

The server of a recipe (use_vllm: true, vllm_mode: server) gets the first vllm_tensor_parallel_size
GPUs. The training gets the others once the server is healthy. If one of them ends, so does the
other. With --only server the server gets all GPUs, and a copy of the model runs on each
vllm_tensor_parallel_size of them. A recipe without a server is started and watched the same way.
All options of `trl-miner train` are accepted and override the recipe:

  trl-miner launch RECIPE --learning_rate 1e-6

The exit code is the training's own, or 128 + N if signal N ended it (130: Ctrl-C, 143: SIGTERM), or
  2    for a wrong recipe, option or data set, too few GPUs, or a port in use;
  10   if the vLLM server was not healthy in time (vllm_server_timeout, 1800 s by default);
  11   if the vLLM server ended;
  75   if the watchdog ended the training, as the server or a process was gone (watchdog_seconds).

After a failure you see the last lines of the log of the process that failed, which is
OUTPUT_DIR/logs/server.log or train.log.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from ..common.errors import INTERRUPTED
from ..common.progress import Progress, finish
from ..common.redaction import redact
from . import add_command, positive


def add(commands: Any) -> None:
    option = add_command(commands, "launch", __doc__, run, passes_on=True).add_argument
    option(
        "recipe",
        metavar="RECIPE",
        help="A recipe (a YAML file, or a name that `trl-miner recipes` shows), or data with --model.",
    )
    option("--dry-run", action="store_true", help="Print the commands and start nothing.")
    option(
        "--only",
        choices=("server",),
        help="Start only the vLLM server; the training runs elsewhere.",
    )
    option(
        "--num_gpus",
        type=positive,
        metavar="N",
        help="Use the first N visible GPUs; in a dry run, plan for N.",
    )
    option(
        "--machine",
        metavar="MACHINE",
        help="In a dry run, plan for a machine with these GPUs, such as 8x80GB.",
    )
    option(
        "--host",
        metavar="HOST",
        help="Where the server listens and the training finds it (default: loopback).",
    )
    option(
        "--server-args",
        default="",
        metavar="FLAGS",
        help="More flags for the server, as one quoted argument.",
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    from ..data_recipe.first_word import with_made_recipe

    if args.quiet:
        overrides = [*overrides, "--quiet"]
    if args.machine and not args.dry_run:
        raise ValueError(
            f"--machine describes another machine: got {args.machine}. Add --dry-run, or leave it out."
        )
    _, args.recipe, *overrides = with_made_recipe([args.recipe, *overrides])
    # takes seconds, because it imports TRL
    with Progress("reading the recipe", unit="", leave=False):
        from ..doctor.context import described_machine
        from ..doctor.examination import refusals
        from ..launching.plan import make_plan
        from ..launching.supervise import supervise

        machine = described_machine(args.machine) if args.machine else None
        if machine is not None:
            args.num_gpus = args.num_gpus or len(machine.gpus)
        plan = make_plan(
            args.recipe, overrides, num_gpus=args.num_gpus, only=args.only, server_host=args.host,
            server_args=args.server_args,
        )  # fmt: skip
    for note in plan.notes:
        print(f"note: {redact(note)}", flush=True)
    if args.dry_run:
        _print_commands(plan)
    # the training would say it, but only once the server has loaded the model
    if plan.train and (args.dry_run or plan.server):
        if found := refusals(plan, machine, is_here=not args.dry_run):
            for finding in found:
                text = f"trl-miner launch: error: {finding.about}: {redact(finding.text)}"
                print(text, file=sys.stderr)
            return 2
    if args.dry_run:
        return 0
    _check_gpus(args.num_gpus, plan)
    logs = Path(plan.settings.output_dir or "trainer_output") / "logs"
    code = supervise(plan, logs)
    names = [name for name, command in (("server", plan.server), ("train", plan.train)) if command]
    if code != INTERRUPTED:  # of which the training has told
        finish([logs / f"{name}.log" for name in names])
    return code


def _check_gpus(wanted: int | None, plan: Any) -> None:
    """Raise ValueError for GPUs that are not there; the plan would also take those that
    CUDA_VISIBLE_DEVICES hides."""
    import torch

    if (plan.train_gpus or plan.server_gpus) and (wanted or 0) > torch.cuda.device_count():
        raise ValueError(
            f"--num_gpus must be at most {torch.cuda.device_count()}, the visible GPUs: got"
            f" {wanted}. Add --dry-run to plan for another machine."
        )


def _print_commands(plan: Any) -> None:
    from ..launching.process import format_command

    if plan.server:
        print(f"# the vLLM server, until {redact(plan.server_url)}/health answers")
        print(format_command(plan.server, plan.server_env))
    if plan.train:
        print(f"# the training: {plan.num_processes} process{'es' * (plan.num_processes != 1)}")
        print(format_command(plan.train, plan.train_env))
