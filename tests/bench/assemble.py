"""The memory that dynamic sampling takes to join the rounds of a batch, on two gloo processes on a CPU.

    python tests/bench/assemble.py [--write]

Two rounds of a batch of rollouts with token ids, log-probs and texts; the batch takes every second prompt of both. The
peak is that of the resident set of each process above what it was when the rounds were there. Target: at most 0.3 GB
at 2,048 rollouts of 8,192 tokens.
"""

import gc
import json
import os
import socket
import subprocess
import sys
import time

import numpy as np
from common import memory_mib, report_table, reset_peak_memory

G, PROCESSES = 16, 2


def rollouts(count, num_tokens, seed):
    """Return what TRL's `_generate` does, as lists of Python's numbers."""
    draw = np.random.default_rng(seed)
    ids = [draw.integers(1000, 150_000, num_tokens).tolist() for _ in range(count)]
    logps = [(-draw.random(num_tokens)).tolist() for _ in range(count)]
    texts = ["three letters each" * (num_tokens // 6) for _ in range(count)]
    return [[1] * 100 for _ in range(count)], ids, None, texts, logps, {}, None, []


def measure(num_rollouts, num_tokens):
    """Return on this process: MiB before, the peak in MiB above it, MiB after, and seconds."""
    import torch
    import torch.distributed as dist
    from accelerate import PartialState
    from accelerate.utils import gather_object

    from trl_miner.distributed import current_world
    from trl_miner.trainer.dynamic_sampling import join_rounds
    from trl_miner.trainer.generation_batch import GeneratedRound

    PartialState(cpu=True)
    world, count = current_world(), num_rollouts // PROCESSES
    gather_object([None])  # the connections' own memory
    rewards_NF = torch.zeros(num_rollouts, 1)
    rounds = []
    for r in range(2):
        rows = [{"prompt": "a prompt", "solution": str(i)} for i in range(count)]
        rounds.append(GeneratedRound(rows, rollouts(count, num_tokens, [r, world.rank]), rewards_NF, {}))
    num_groups = num_rollouts // G
    groups = [(0, p) for p in range(0, num_groups, 2)] + [(1, p) for p in range(1, num_groups, 2)]
    wanted = [(r, G * p + i) for r, p in groups for i in range(G)]
    gc.collect()
    dist.barrier()
    before = memory_mib("VmRSS")
    reset_peak_memory()
    start = time.perf_counter()
    batch = join_rounds(rounds, wanted, world)
    seconds, peak, after = time.perf_counter() - start, memory_mib("VmHWM"), memory_mib("VmRSS")
    assert len(batch.rows) == count
    print(json.dumps([before, peak - before, after, seconds]))
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)


def measure_apart(num_rollouts, num_tokens):
    """Return `measure` of each process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(PROCESSES):
        group = {"RANK": rank, "WORLD_SIZE": PROCESSES, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = os.environ | {name: str(value) for name, value in group.items()}
        command = [sys.executable, __file__, "--measure", str(num_rollouts), str(num_tokens)]
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"{num_rollouts} x {num_tokens} could not be measured: a process failed.")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def main():
    if sys.argv[1:2] == ["--measure"]:
        return measure(*map(int, sys.argv[2:4]))
    rows = []
    for num_rollouts, num_tokens in ((512, 1024), (2048, 1024), (2048, 8192)):
        before, peak, after, seconds = map(max, zip(*measure_apart(num_rollouts, num_tokens), strict=True))
        row = [f"{num_rollouts:,} x {num_tokens:,}", f"{before / 1024:.2f}", f"{max(0, peak) / 1024:.2f}"]
        rows.append([*row, f"{after / 1024:.2f}", f"{seconds:.1f}"])
    header = [
        "rollouts x tokens",
        "resident with both rounds, GB",
        "peak above it, GB",
        "resident after, GB",
        "seconds",
    ]
    text = (
        "`join_rounds` on two gloo processes, the larger of the two: two rounds of a whole batch each, of which each\n"
        "second prompt goes into the batch, and half of these to the other process. Token ids, log-probs and texts,\n"
        "as Python's numbers and strings. Target: at most 0.3 GB above the rounds at 2,048 x 8,192. (1 GB is 2^30\n"
        "bytes.) It is 0 because rows that are not in the batch are freed before others take their place."
    )
    report_table("assemble", "Memory: joining the rounds of dynamic sampling", text, header, rows)


if __name__ == "__main__":
    main()
