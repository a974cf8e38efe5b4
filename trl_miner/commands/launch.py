"""`trl-miner launch`: the vLLM server and the training of a recipe, started and watched together."""

import argparse
from pathlib import Path
from typing import Any

from . import add_quiet

EXIT_CODES = """exit code:
  the training's own, or 128 + N where signal N ended it, or launch (130: Ctrl-C, 143: SIGTERM)
  2    nothing was started: a wrong recipe or option, too few GPUs, a port that is taken
  10   the vLLM server did not become healthy in time (vllm_server_timeout; 1800 s unless it is set)
  11   the vLLM server ended
  12   the vLLM server did not answer for watchdog_seconds (300 s unless it is set; 0: never)

On a failure the last lines of the log of what failed are shown. Logs: OUTPUT_DIR/logs/server.log and train.log."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "launch",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        help="start a recipe's vLLM server and its training, and watch both: trl-miner launch RECIPE",
        description="Start the vLLM server of a recipe (use_vllm: true, vllm_mode: server) on the first\n"
        "vllm_tensor_parallel_size GPUs, wait until it is healthy, start accelerate on the other GPUs, watch both,\n"
        "and end both. A recipe without a server is started and watched likewise. Settings of the recipe are\n"
        "overridden behind it: trl-miner launch RECIPE --learning_rate 1e-6",
        epilog=EXIT_CODES,
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a YAML file, such as recipes/arithmetic/miner.yaml")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, and start nothing")
    parser.add_argument("--only", choices=("server", "train"), help="start this part; the other runs elsewhere")
    parser.add_argument(
        "--num_gpus", type=int, metavar="N", help="plan for so many on each machine (default: those that are visible)"
    )
    server = parser.add_argument_group("vLLM server")
    server.add_argument(
        "--host", metavar="HOST", help="where it listens, and where the training looks for it (default: loopback)"
    )
    server.add_argument(
        "--server-command", metavar="COMMAND",
        help="in front of its flags, in the place of `python -m vllm.entrypoints.cli.main serve MODEL`: a container",
    )  # fmt: skip
    server.add_argument("--server-args", default="", metavar="FLAGS", help="more flags for it: one quoted argument")
    training = parser.add_argument_group("training")
    training.add_argument(
        "--num_processes", type=int, metavar="N", help="in all (default: one for each GPU that the server leaves)"
    )
    training.add_argument("--num_machines", type=int, metavar="N", help="default: accelerate_config's")
    training.add_argument("--machine_rank", type=int, metavar="N", help="of this machine, from 0")
    training.add_argument("--main_process_ip", metavar="HOST", help="the machine of rank 0")
    training.add_argument("--main_process_port", type=int, metavar="PORT", help="a free port there")
    parser.add_argument(
        "--grace", type=float, default=20.0, metavar="SECONDS", help="between a signal and SIGKILL (default: 20)"
    )
    add_quiet(parser)
    parser.set_defaults(run=run)


def machines_of(args: argparse.Namespace) -> Any:
    from ..launching.plan import Machines

    return Machines(args.num_machines, args.machine_rank, args.main_process_ip, args.main_process_port)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    from ..progress import Progress, finish

    if args.quiet:
        overrides = [*overrides, "--quiet"]
    with Progress("reading the recipe", unit="", leave=False):  # importing TRL takes most of it
        from ..launching.parts import shown
        from ..launching.plan import make_plan
        from ..launching.supervise import supervise

        machines = machines_of(args)
        plan = make_plan(
            args.recipe, overrides, num_gpus=args.num_gpus, part=args.only or "both", server_host=args.host,
            num_processes=args.num_processes, machines=machines, server_program=args.server_command,
            server_args=args.server_args,
        )  # fmt: skip
    for note in plan.notes:
        print(f"note: {note}", flush=True)
    if args.dry_run:
        if plan.server:
            print(f"# the vLLM server, until {plan.server_url}/health answers\n{shown(plan.server, plan.server_env)}")
        if plan.train:
            print(f"# the training: {_count(plan)}\n{shown(plan.train, plan.train_env)}")
        if not args.quiet:  # a comment, for somebody who pastes all of it
            print(f"# next: {shown(['trl-miner', *(word for word in args.argv if word != '--dry-run')])}")
        return 0
    _check_machines(plan.num_machines, plan.accelerate, machines)
    suffix = f"-{args.machine_rank}" if args.machine_rank else ""
    logs = Path(plan.settings.output_dir or "trainer_output") / "logs"
    code = supervise(plan, logs, grace=args.grace, suffix=suffix)
    parts = [name for name, command in (("server", plan.server), ("train", plan.train)) if command]
    finish([logs / f"{name}{suffix}.log" for name in parts])
    return code


def _count(plan: Any) -> str:
    processes = f"{plan.num_processes} process{'' if plan.num_processes == 1 else 'es'}"
    return processes + (f" on {plan.num_machines} machines" if plan.num_machines > 1 else "")


def _check_machines(num_machines: int, config: dict[str, Any], machines: Any) -> None:
    """Where accelerate would wait for an address that nobody has given."""
    if num_machines < 2:
        return
    for name in ("main_process_ip", "main_process_port"):
        if getattr(machines, name) is None and not config.get(name):
            raise ValueError(
                f"A training on {num_machines} machines needs {name}: got none. Give --{name}, the same on all, and "
                f"--machine_rank, another on each."
            )
