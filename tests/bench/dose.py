"""How closely `dose_share` is held, and what it costs, in an embedded world.

    python tests/bench/dose.py --world trl_miner/arithmetic [--write] [--steps 80] [--pairs 20]

Share: 8 prompts x 8 rollouts a step; the trainer measures the first 8 steps and every 25th. The table has the shares
of every third step from the 9th on, which the bench measures on its own.

Cost: two trainers take a step on the same rollouts in turn, one that measures it and one that does not, at learning
rate 0; the processor's seconds of the one over those of the other, less 1, over the 25 steps between measurements.
"""

import argparse
import statistics
import tempfile
import time

import torch
from common import machine, quartiles, report, table
from transformers import set_seed

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer
from trl_miner.data.base_model import find_model
from trl_miner.data.worlds import WORLDS
from trl_miner.rewards import math_reward
from trl_miner.trainer.gradient_share import EVERY, FIRST_STEPS, GradientShare, compare_parts, part_products

LEARNING_RATES = {"trl_miner/arithmetic": 1e-4}  # as in its recipes; else 2e-4
METHODS = {
    "MINER": dict(all_right="miner"),
    "entropy bonus": dict(all_right="entropy"),
    "RL-ZVP, both sides": dict(all_right="rl_zvp", all_wrong="rl_zvp"),
}
TARGETS = (0.01, 0.05, 0.2)


def trainer(world: str, folder: str, rows: int = 64, **settings) -> MinerGRPOTrainer:
    args = MinerGRPOConfig(
        **dict(
            output_dir=folder, advantage_estimator="grpo", dose_share=0.01, per_device_train_batch_size=rows,
            num_generations=8, max_completion_length=80, weight_decay=0.01,
            learning_rate=LEARNING_RATES.get(world, 2e-4),
            lr_scheduler_type="constant", report_to="none", save_strategy="no", logging_steps=1000, use_cpu=True,
            bf16=False, gradient_checkpointing=False, disable_tqdm=True,
        )
        | settings
    )  # fmt: skip
    model = find_model(world)
    return MinerGRPOTrainer(str(model), math_reward, args, WORLDS[world].load_dataset("train", size=2000))


class Watch(GradientShare):
    """Measures shares beside the trainer's own measurement, which does not get to know them."""

    def __init__(self, trained: MinerGRPOTrainer) -> None:
        super().__init__(trained)
        self.shares: list[float] = []
        own = trained._gradient_share.add
        trained._gradient_share.add = lambda *batch: [add(*batch) for add in (own, self.add)]
        trained.add_callback(self)

    def _is_logged(self, step: int) -> bool:
        return step > FIRST_STEPS and step % 3 == 0

    def _is_steered(self, step: int) -> bool:
        return False

    def on_optimizer_step(self, *args, **kwargs) -> None:
        if self._parts is not None:
            found = compare_parts(*part_products(self._parts, self._parameters()))
            if "miner/gradient_cosine" in found:
                self.shares.append(found["miner/ph_gradient_share"])
        self._reset()


def shares(world: str, method: str, target: float, steps: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        trained = trainer(world, folder, dose_share=target, max_steps=steps, **METHODS[method])
        watch = Watch(trained)
        trained.train()
    return watch.shares


def step_seconds(trained: MinerGRPOTrainer, batches, seed: int, step: int) -> float:
    """Processor's seconds of a step; `step` is what the dose takes for the steps before it."""
    batch, trained.state.global_step = next(batches), step
    set_seed(seed)
    start = time.process_time()
    trained.model.train()
    trained.training_step(trained.model, batch, None)
    trained.optimizer.step()
    trained._gradient_share.on_optimizer_step(trained.args, trained.state, trained.control)
    trained.model.zero_grad()
    return time.process_time() - start


def cost(world: str, pairs: int) -> list[float]:
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        both = {}
        for is_measured in (False, True):
            made = trainer(world, folder, rows=128, all_right="miner", learning_rate=0.0, num_generations=16)
            made.create_optimizer()
            made.current_gradient_accumulation_steps = 1
            both[is_measured] = (made, iter(made.get_train_dataloader()))
        for seed in range(2 + pairs):
            order = (False, True) if seed % 2 else (True, False)
            seconds = {known: step_seconds(*both[known], seed, EVERY - known) for known in order}
            ratios.append(seconds[True] / seconds[False] - 1)
    return [ratio / EVERY for ratio in ratios[2:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables to tests/bench/results")
    parser.add_argument("--world", choices=list(WORLDS), default=next(iter(WORLDS)), help="the embedded world")
    parser.add_argument("--steps", type=int, default=80, help="steps of a training")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of steps for the cost")
    options = parser.parse_args()
    torch.set_num_threads(1)
    added = quartiles(cost(options.world, options.pairs))
    cost_text = "{1:.2%} (quartiles {0:.2%} to {2:.2%})".format(*added)
    print(cost_text, flush=True)
    rows = []
    for method in METHODS:
        for target in TARGETS:
            found = shares(options.world, method, target, options.steps)
            mean = statistics.mean(found)
            spread = "{:.4f} to {:.4f}".format(*quartiles(found)[::2])
            rows.append([method, target, f"{mean:.4f}", f"{mean / target:.2f}", spread, len(found)])
            print(*rows[-1], flush=True)
    name = options.world.rpartition("/")[2]
    report(
        f"dose_{name}",
        f"# The dose of credit in the world {name}\n\n{machine()}\n\nThe share of credited prompts in the policy "
        f"gradient's norm: {options.steps} steps of 64 rollouts, in steps that the dose mostly does not measure:\n\n"
        + table(["methods", "target", "mean share", "mean / target", "quartiles", "steps"], rows)
        + f"\n\nCost, {options.pairs} pairs of steps of 128 rollouts with MINER, generation "
        f"included: {cost_text} of the processor's time, in the median.",
    )


if __name__ == "__main__":
    main()
