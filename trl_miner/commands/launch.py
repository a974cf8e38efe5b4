"""`trl-miner launch`: the vLLM server and the training of a recipe, started and watched together."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ..errors import INTERRUPTED
from ..progress import Progress, finish
from ..recipe_files import say_which
from ..redaction import redact
from . import set_run

EXIT_CODES = """exit code:
  the training's own, or 128 + N if signal N ended it or launch (130: Ctrl-C, 143: SIGTERM)
  2    nothing was started: a wrong recipe or option, too few GPUs, a port in use
  10   the vLLM server did not become healthy in time (vllm_server_timeout, 1800 s by default)
  11   the vLLM server ended
  12   the vLLM server did not answer for watchdog_seconds (300 s by default; 0: wait forever)

On a failure the last lines of the failed process's log are shown. Logs: OUTPUT_DIR/logs/server.log and train.log."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "launch",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        help="start a recipe's vLLM server and its training, and watch both: trl-miner launch RECIPE",
        description="Start the vLLM server of a recipe (use_vllm: true, vllm_mode: server) on the first\n"
        "vllm_tensor_parallel_size GPUs, wait until it is healthy, start the training on the other GPUs, watch both,\n"
        "and end both when one ends. A recipe without a server is started and watched the same way. Options after\n"
        "the recipe override its settings: trl-miner launch RECIPE --learning_rate 1e-6",
        epilog=EXIT_CODES,
    )
    option = parser.add_argument
    option("recipe", metavar="RECIPE", help="a YAML file, one of `trl-miner recipes`, or a data set with --model")
    option("--dry-run", action="store_true", help="print the commands and start nothing")
    option("--only", choices=("server",), help="start only the vLLM server; the training runs elsewhere")
    option("--num_gpus", type=int, metavar="N", help="GPUs of the machine (default: the visible ones)")
    option(
        "--grace", type=float, default=20.0, metavar="SECONDS", help="time between a signal and SIGKILL (default: 20)"
    )
    set_run(parser, run)
    option("--host", metavar="HOST", help="where the server listens, and the training finds it (default: loopback)")
    option("--server-args", default="", metavar="FLAGS", help="more flags for the server, as one quoted argument")


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    from ..data_recipe import with_made_recipe

    if args.quiet:
        overrides = [*overrides, "--quiet"]
    _, args.recipe, *overrides = with_made_recipe([args.recipe, *overrides])
    say_which(args.recipe)
    with Progress("reading the recipe", unit="", leave=False):  # takes seconds, because it imports TRL
        from ..launching.plan import make_plan
        from ..launching.supervise import supervise
        from ..runs.run_folder import say_finished

        plan = make_plan(
            args.recipe, overrides, num_gpus=args.num_gpus, only=args.only, server_host=args.host,
            server_args=args.server_args,
        )  # fmt: skip
    for note in plan.notes:
        print(f"note: {redact(note)}", flush=True)
    if args.dry_run:
        _print_commands(plan, args)
        return _refuse(plan, is_here=False)
    if plan.server and plan.train:
        # the training would say both, but only once the server has loaded the model
        if said := say_finished(plan.settings):
            print(said)
            return 0
        if code := _refuse(plan):
            return code
    logs = Path(plan.settings.output_dir or "trainer_output") / "logs"
    code = supervise(plan, logs, grace=args.grace)
    names = [name for name, command in (("server", plan.server), ("train", plan.train)) if command]
    if code != INTERRUPTED:  # of which the training has told
        finish([logs / f"{name}.log" for name in names])
    return code


def _refuse(plan: Any, *, is_here: bool = True) -> int:
    """Say why the training would end at its start. Return the exit code: 2, or 0 if nothing speaks against it."""
    from ..doctor.examination import refusals

    found = refusals(plan, is_here=is_here) if plan.train else []
    for finding in found:
        print(f"trl-miner launch: error: {finding.about}: {redact(finding.text)}", file=sys.stderr)
    return 2 if found else 0


def _print_commands(plan: Any, args: argparse.Namespace) -> None:
    from ..launching.process import format_command

    if plan.server:
        print(f"# the vLLM server, until {redact(plan.server_url)}/health answers")
        print(format_command(plan.server, plan.server_env))
    if plan.train:
        print(f"# the training: {plan.num_processes} process{'es' * (plan.num_processes != 1)}")
        print(format_command(plan.train, plan.train_env))
    if not args.quiet:  # as a comment, so that all lines can be pasted into a shell
        print(f"# next: {format_command(['trl-miner', *(word for word in args.argv if word != '--dry-run')])}")
