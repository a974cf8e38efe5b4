"""How long the method itself takes, at the paper's size: 128 prompts x 16 rollouts x 8192 tokens.

    python tests/bench/advantage.py [--write] [--gpu]

Against plain GRPO advantages, and against the floor: reading the log-probs and the mask and writing
the advantages once, in one pass. Target: at most 6 x the floor, at most two extra (N, T) float32
tensors alive at once (the result is one of them), and time linear in N x T. The first two are
checked. On a CPU it is the time of one thread, in which other programs do not count.
"""

import sys
import time
from pathlib import Path

import torch
from common import machine, promise, report, table

from trl_miner.methods.grpo import group_relative_advantages
from trl_miner.methods.miner import miner_advantages

HEADER = (
    "prompts x G x tokens; PH share; floor, ms; GRPO (N, T), ms; MINER, ms; x floor;"
    " extra (N, T) float32 at the peak"
)
G = 16
REPEATS = 7
ON_GPU = "--gpu" in sys.argv
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
clock = time.perf_counter if ON_GPU else time.thread_time
torch.set_num_threads(1)


def batch(num_prompts: int, num_tokens: int, ph_share: float):
    """Rewards, log-probs and mask (int64, as TRL makes it): `ph_share` of the prompts all right,
    the rest mixed. Lengths are log-normal with a mean of a quarter of the cap, as reasoning lengths
    are."""
    generator = torch.Generator().manual_seed(0)
    num_rows = num_prompts * G
    rewards = (torch.rand(num_rows, generator=generator) < 0.5).float()
    rewards[: round(num_prompts * ph_share) * G] = 1.0
    logps = torch.empty(num_rows, num_tokens).exponential_(4.0, generator=generator).neg_()
    lengths = (
        torch.empty(num_rows)
        .log_normal_(-1.7, 0.8, generator=generator)
        .mul(num_tokens)
        .clamp(1, num_tokens)
    )
    mask = (torch.arange(num_tokens) < lengths.unsqueeze(1)).long()
    return rewards.to(DEVICE), logps.to(DEVICE), mask.to(DEVICE)


def seconds(function) -> float:
    function()
    times = []
    for _ in range(REPEATS):
        wait()
        start = clock()
        function()
        wait()
        times.append(clock() - start)
    return min(times)


def wait() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def extra_memory(function) -> float:
    """Peak of the resident set, or of the GPU's memory, above what it was before, in MiB, the
    result included."""
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    before = memory_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, on Linux
    result = function()
    peak = memory_mib("VmHWM") - before
    del result
    return peak


def memory_mib(field: str) -> float:
    """Return VmRSS (now) or VmHWM (the peak) of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def main() -> None:
    rows = []
    for num_prompts, num_tokens, ph_share in (
        (128, 8192, 0.0),
        (128, 8192, 0.25),
        (128, 8192, 0.65),
        (128, 8192, 1.0),
        (128, 4096, 0.65),
        (64, 8192, 0.65),
        (32, 8192, 0.65),
    ):
        rewards, logps, mask = batch(num_prompts, num_tokens, ph_share)
        out = torch.empty_like(logps)
        tensor_mib = out.numel() * 4 / 2**20
        floor = seconds(lambda: torch.add(logps, mask, out=out))  # noqa: B023
        grpo = seconds(lambda: group_relative_advantages(rewards, G).unsqueeze(1) * mask)  # noqa: B023
        run = lambda: miner_advantages(rewards, logps, mask, num_generations=G, lambda_max=None)  # noqa: B023, E731
        least = seconds(run)
        extra = extra_memory(run) / tensor_mib
        rows.append(
            [
                f"{num_prompts} x {G} x {num_tokens}",
                f"{ph_share:.0%}",
                f"{floor * 1e3:.3g}",
                f"{grpo * 1e3:.3g}",
                f"{least * 1e3:.3g}",
                f"{least / floor:.1f}",
                f"{extra:.2f}",
            ]
        )
    text = f"# The advantage computation\n\n{__doc__.splitlines()[0]}\n\n{machine()}\n"
    text += (
        f"Least of {REPEATS} after one warm-up. `python tests/bench/advantage.py"
        f" {' '.join(sys.argv[1:])}`\n\n"
    )
    report("advantage_gpu" if ON_GPU else "advantage", text + table(HEADER.split("; "), rows))
    promise(max(float(row[-1]) for row in rows) <= 2, "at most two extra (N, T) tensors")
    promise(max(float(row[-2]) for row in rows[:4]) <= 6, "at most 6 x the floor")


if __name__ == "__main__":
    main()
