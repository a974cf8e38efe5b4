"""How long a step takes where the generator is slow, as on GPUs, in the synchronous and the
asynchronous trainer.

    python tests/bench/overlap.py --write

The embedded world, 8 prompts x 8 rollouts a step. Both trainers have a generator that takes so many
seconds for a step's rollouts that this is 65 % of the synchronous trainer's step; beyond what it
computes it sleeps, as a trainer does that waits for a server. They take turns. Wall time, one
thread for each process; the committed table is of two cores that other jobs shared, so that seconds
are long and the ratio is what it says.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from common import report_table
from transformers import TrainerCallback

from trl_miner import MinerAsyncGRPOConfig, MinerAsyncGRPOTrainer, MinerGRPOConfig, MinerGRPOTrainer
from trl_miner.asynchronous import trainer as asynchronous
from trl_miner.asynchronous.on_cpu import LocalLoop, LocalWorker
from trl_miner.data import arithmetic
from trl_miner.rewards import math_reward

SHARE = 0.65
SECONDS = "OVERLAP_SECONDS"  # of a step's rollouts, also for the worker's process
ROUNDS, STEPS, WARM_UP = 3, 8, 3


def slowly(generate: Callable[[], Any]) -> Any:
    start = time.monotonic()
    generated = generate()
    time.sleep(max(0.0, float(os.environ[SECONDS]) - (time.monotonic() - start)))
    return generated


class SlowLoop(LocalLoop):
    """Samples slowly in the worker's process."""

    def sample(self, prompts: list[list[int]]) -> Any:
        return slowly(partial(super().sample, prompts))


class SlowWorker(LocalWorker):
    """A worker with such a loop."""

    _loop_cls = SlowLoop


class Slow(MinerGRPOTrainer):
    """Samples slowly in its own process, and remembers how long that took."""

    seconds = 0.0

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        start = time.monotonic()
        generated = slowly(partial(super()._generate, *args, **kwargs))
        self.seconds = time.monotonic() - start
        return generated


class Times(TrainerCallback):
    """The time at the end of each step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.ends.append(time.monotonic())


def train(
    kind: Any, settings: Any, seconds: float, steps: int = STEPS, **own: Any
) -> tuple[Any, list[float]]:
    """Return the trainer after its training, and the seconds of each step but for the first
    ones."""
    os.environ[SECONDS] = str(seconds)
    with tempfile.TemporaryDirectory() as folder:
        batch = dict(
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=48,
            max_steps=steps,
        )
        quiet = dict(report_to="none", save_strategy="no", disable_tqdm=True, logging_steps=1)
        on_cpu = dict(use_cpu=True, bf16=False, gradient_checkpointing=False)
        args = settings(folder, learning_rate=1e-4, **batch, **quiet, **on_cpu, **own)
        trainer, times = (
            kind("trl_miner/arithmetic", math_reward, args, arithmetic.load_dataset("train")),
            Times(),
        )
        trainer.add_callback(times)
        trainer.train()
    return (
        trainer,
        [later - end for end, later in zip(times.ends, times.ends[1:], strict=False)][
            WARM_UP - 1 :
        ],
    )


def main() -> None:
    trainer, took = train(Slow, MinerGRPOConfig, 0.0)
    rest = statistics.median(took) - trainer.seconds
    seconds = max(trainer.seconds, rest * SHARE / (1 - SHARE))
    asynchronous.LocalWorker = SlowWorker
    ours = {"max_inflight_tasks": 64, "queue_maxsize": 64}
    found: dict[str, list[float]] = {"synchronous": [], "asynchronous": []}
    waits, staleness, computing = [], [], []
    for _ in range(ROUNDS):
        found["synchronous"] += train(Slow, MinerGRPOConfig, seconds)[1]
        trainer, took = train(MinerAsyncGRPOTrainer, MinerAsyncGRPOConfig, seconds, **ours)
        found["asynchronous"] += took
        logs = [log for log in trainer.state.log_history if "perf/rollout_wait_s" in log][WARM_UP:]
        waits += [log["perf/rollout_wait_s"] for log in logs]
        staleness += [log["sample/staleness_mean"] for log in logs]
        computing += [log["perf/fwd_bwd_s"] for log in logs]
    medians = {name: statistics.median(took) for name, took in found.items()}
    first = medians["synchronous"]
    rows = [
        ["synchronous", f"{first:.2f} s", "1", f"{seconds:.2f} s", f"{first - seconds:.2f} s", "0"],
        [
            "asynchronous",
            f"{medians['asynchronous']:.2f} s",
            f"{medians['asynchronous'] / first:.2f}",
            f"{statistics.median(waits):.2f} s",
            f"{statistics.median(computing):.2f} s",
            f"{statistics.mean(staleness):.1f}",
        ],
    ]
    header = [
        "Trainer",
        "Step, median",
        "of the first",
        "Waits for rollouts",
        "Computes",
        "Steps behind the policy",
    ]
    report_table("overlap", "Generation beside training", __doc__, header, rows)


if __name__ == "__main__":
    main()
