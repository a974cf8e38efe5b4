"""Say whether a recipe fits on a machine and how long a step takes, by arithmetic.

Nothing is started, and no weight is read. With a vLLM server, the other way is shown, too: vLLM in
the processes of the training. All settings of `trl-miner train` are accepted.

  trl-miner doctor Qwen3-4B-Base/miner --machine 8x80GB --price 2

The exit code is 0, 1 where it does not fit, or 2 for a mistake.
"""

import argparse
from types import SimpleNamespace

from .machine import GIB, add_machine, gpus_of

NAME = "doctor"
HELP = "Does a recipe fit on a machine, and how long does it take?"
TAKES_SETTINGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_machine(parser)
    parser.add_argument("--price", type=float, help="Of a GPU for an hour.")


def run(args: argparse.Namespace, words: list[str]) -> int:
    from .. import doctor
    from ..launching.plan import make_plan
    from ..recipe.reading import read_plain

    path, settings = read_plain(words)
    given, gpus = SimpleNamespace(**settings), gpus_of(args.machine)
    plan = make_plan(path, given, words, [*gpus])
    if given.use_cpu:
        print("It trains on a CPU. Train with --max_steps 3: the log has the seconds of a step.")
        return 0
    shape, gpu = doctor.shape_of(given), min(gpus.values())
    rows = doctor.training_bytes(shape, given, plan, gpu)
    needed = sum(rows.values())
    if given.use_vllm and given.vllm_mode == "colocate":  # and awake while it samples
        states = sum(rows[name] for name in [*rows][:2]) + doctor.CUDA
        needed = max(needed, states + given.vllm_gpu_memory_utilization * gpu)
    rows["in all, at most"], rows["free on a GPU"] = needed, gpu
    if given.use_vllm:
        cache = doctor.cache_bytes(shape, given, gpu)
        whole = cache / shape.cached / (doctor.PROMPT + given.max_completion_length)
        rows[f"vLLM's cache, for {whole:.0f} longest completions"] = cache
        needed = needed if cache else float("inf")
    print(f"{shape.parameters / 1e9:.2f} B parameters, {plan.processes} GPUs train:")
    for name, size in rows.items():
        print(f"  {name:<45}{size / GIB:8.1f} GiB")
    print(f"It {'fits' if needed <= gpu else 'does NOT fit'}.")
    for change, seconds in doctor.ways(shape, given, plan, gpu).items():
        hours = seconds * max(given.max_steps, 0) / 3600
        cost = f", at a price of {hours * len(gpus) * args.price:,.2f}" if args.price else ""
        print(f"{seconds:.0f} s a step, {hours:,.1f} hours{cost}{change and f', with {change}'}")
    print(doctor.LEFT_OUT)
    return int(needed > gpu)
