"""Start a recipe's vLLM server and its training, and watch both.

The server of a recipe (use_vllm: true, vllm_mode: server) gets the first vllm_tensor_parallel_size
GPUs, and the training the others once it is healthy; both end when one ends. With --only server it
gets all GPUs, and a copy of the model on each vllm_tensor_parallel_size of them. A recipe without a
server is started and watched the same way. Options after the recipe override its settings:
trl-miner launch RECIPE --learning_rate 1e-6

exit code:
  the training's own, or 128 + N if signal N ended it or launch (130: Ctrl-C, 143: SIGTERM)
  2    a wrong recipe, option or data set, too few GPUs, a port in use
  10   the vLLM server did not become healthy in time (vllm_server_timeout, 1800 s by default)
  11   the vLLM server ended
  75   the training's watchdog ended it: the server or a process was gone (watchdog_seconds)

On a failure the last lines of the failed process's log are shown: OUTPUT_DIR/logs/server.log,
train.log.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from ..errors import INTERRUPTED
from ..progress import Progress, finish
from ..redaction import redact
from . import add_command, positive


def add(commands: Any) -> None:
    option = add_command(commands, "launch", __doc__, run).add_argument
    option(
        "recipe",
        metavar="RECIPE",
        help="a YAML file, one of `trl-miner recipes`, or a data set with --model",
    )
    option("--dry-run", action="store_true", help="print the commands and start nothing")
    option(
        "--only",
        choices=("server",),
        help="start only the vLLM server; the training runs elsewhere",
    )
    option(
        "--num_gpus",
        type=positive,
        metavar="N",
        help="use the first N visible GPUs; in a dry run, plan for N",
    )
    option(
        "--machine",
        metavar="MACHINE",
        help="in a dry run, plan for a machine with these GPUs, such as 8x80GB",
    )
    option(
        "--host",
        metavar="HOST",
        help="where the server listens, and the training finds it (default: loopback)",
    )
    option(
        "--server-args",
        default="",
        metavar="FLAGS",
        help="more flags for the server, as one quoted argument",
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    from ..data_recipe import with_made_recipe

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
