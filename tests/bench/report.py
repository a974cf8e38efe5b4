"""How long `trl-miner report` takes for a run of 2,000 and of 200,000 logged steps, and how large its page is.

    python tests/bench/report.py [--write]

The whole command, imports included. Targets: 5 and 15 seconds of processor time, 700 MB.
"""

import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import report_table

METRICS = """
    loss grad_norm learning_rate num_tokens reward reward_std frac_reward_zero_std rewards/math_reward/mean
    rewards/math_reward/std completions/mean_length completions/min_length completions/max_length
    completions/clipped_ratio completions/mean_terminated_length completions/min_terminated_length
    completions/max_terminated_length entropy kl clip_ratio/low_mean clip_ratio/low_min clip_ratio/high_mean
    clip_ratio/high_max clip_ratio/region_mean step_time groups/ph groups/he groups/nh rollouts/grpo
    rollouts/recovered rollouts/used rollouts/generated_total rollouts/used_total rollouts/tokens_total miner/tau_ref
    miner/tau_pos miner/scale miner/cap_binds miner/intrinsic_reward miner/credit_weight miner/seconds
    micro_batches/rows micro_batches/tokens
""".split()


def write_run(folder, num_steps, seed):
    """Write a run that was trained with MINER and scored ten times."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    values = random.random((num_steps, len(METRICS)))
    for name in ("rollouts/generated_total", "rollouts/used_total", "rollouts/tokens_total", "num_tokens"):
        values[:, METRICS.index(name)] = 1000 * np.arange(1, num_steps + 1)
    logs = [
        {"step": step, "epoch": step / num_steps, **dict(zip(METRICS, row, strict=True))}
        for step, row in enumerate(values.tolist(), start=1)
    ]
    state = {"global_step": num_steps, "max_steps": num_steps, "log_history": logs}
    names = ["before", *(f"step {num_steps * k // 10}" for k in range(1, 10)), "after"]
    facts = {
        "training": {
            "settings": {"advantage_estimator": "miner"},
            "seed": seed,
            "optimizer_steps_per_step": 1.0,
        },
        "compared": {"method": "miner"},
        "held_out": {
            "problems": {},
            "moments": {
                name: {"step": num_steps * k // 10, "num_samples": 100, "num_correct": [50 + 3 * k]}
                for k, name in enumerate(names)
            },
        },
        "trainer_state": state,
    }
    for name, content in facts.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2 if name == "trainer_state" else None))


def main():
    rows = []
    for num_steps, num_runs in ((2_000, 1), (2_000, 6), (200_000, 1)):
        with tempfile.TemporaryDirectory() as folder:
            runs = [Path(folder) / f"miner_s{seed}" for seed in range(num_runs)]
            for seed, run in enumerate(runs):
                # in a process of its own: what this one holds at a fork counts as memory of the command
                writer = multiprocessing.get_context("spawn").Process(target=write_run, args=(run, num_steps, seed))
                writer.start()
                writer.join()
            megabytes = sum((run / "trainer_state.json").stat().st_size for run in runs) / 1e6
            command = [sys.executable, "-m", "trl_miner.cli", "report", *map(str, runs)]
            command += ["--output", f"{folder}/report"]
            start = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)  # of this process alone
            assert status == 0, status
            seconds, used, memory = time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3
            page = (Path(folder) / "report" / "index.html").read_text()
            figures = len(re.findall(r"<svg", page))
            row = [f"{num_steps:,}", num_runs, f"{megabytes:.0f}", figures, f"{len(page) / 1e6:.1f}"]
        rows.append([*row, f"{used:.1f}", f"{seconds:.1f}", f"{memory:.0f}"])
    header = ["logged steps", "runs", "trainer_state.json, MB", "figures", "page, MB"]
    header += ["processor, s", "elapsed, s", "memory, MB"]
    text = (
        f"The whole command, imports included, for runs with {len(METRICS)} metrics at every logged step. Targets:\n"
        "5 seconds of processor time for 2,000 steps; 15 and 700 MB for 200,000."
    )
    report_table("report", "`trl-miner report`", text, header, rows)


if __name__ == "__main__":
    main()
