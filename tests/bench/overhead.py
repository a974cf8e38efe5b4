"""What a training step costs more for MINER than with TRL's GRPOTrainer, on the embedded world.

    python tests/bench/overhead.py [--write] [--pairs 40]

Both trainers live in one process and take generation cycles in turn, the order changing from pair
to pair. They start from the same weights, learn at rate 0 and draw from the same seed, so that both
handle the very same rollouts.

What makes the step faster in other ways is switched off: `step.py` measures that.

(a) aligned: TRL has no old log-probs, so MINER forwards the all-right rows itself.
(b) off-policy: TRL has them (num_iterations=2), so MINER adds arithmetic alone.
Each with the base model, where fewer prompts are all right, and with one trained by MINER, where
most are. Target for the median ratio of whole cycles: (a) at most 1 + 0.35 x the PH share, (b) at
most 1.01. Same peak memory within 2 %.
"""

import argparse
import gc
import statistics
import tempfile
import time
from pathlib import Path

import torch
from common import AS_TRL, machine, memory_mib, promise, quartiles, report, reset_peak_memory, table
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer
from trl_miner.data import arithmetic
from trl_miner.data.base_model import find_model
from trl_miner.rewards import math_reward

SETTINGS = dict(
    per_device_train_batch_size=256,
    num_generations=16,
    max_completion_length=64,
    lr_scheduler_type="constant",
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    logging_steps=1000,
)


class Cycles:
    """One trainer, stepped by hand: a cycle is one generation and the optimizer steps on it."""

    def __init__(self, cls, config_cls, model: str, folder: str, num_iterations: int):
        own = AS_TRL if config_cls is MinerGRPOConfig else {}
        args = config_cls(
            output_dir=folder, learning_rate=0.0, num_iterations=num_iterations, **SETTINGS, **own
        )
        self.trainer = cls(model, math_reward, args, arithmetic.load_dataset("train"))
        self.trainer.create_optimizer()
        self.trainer.current_gradient_accumulation_steps = 1
        self.batches = iter(self.trainer.get_train_dataloader())
        self.generate = self.trainer._generate
        self.trainer._generate = self._timed_generate
        self.generation = 0.0

    def _timed_generate(self, prompts):
        start = time.perf_counter()
        result = self.generate(prompts)
        self.generation += time.perf_counter() - start
        return result

    def run(self, seed: int) -> tuple[float, float, float]:
        """Seconds of a whole cycle, seconds of it without generation, peak resident MiB."""
        batches = [next(self.batches) for _ in range(self.trainer.num_iterations)]
        set_seed(seed)
        gc.collect()
        reset_peak_memory()
        self.generation, start = 0.0, time.perf_counter()
        self.trainer.model.train()
        for batch in batches:
            self.trainer.training_step(self.trainer.model, batch, None)
            self.trainer.optimizer.step()
            self.trainer.model.zero_grad()
        seconds = time.perf_counter() - start
        return seconds, seconds - self.generation, memory_mib("VmHWM")

    def metric(self, name: str) -> float:
        return statistics.mean(self.trainer._metrics["train"][name])


def trained_model(folder: str, steps: int) -> str:
    """The base model after some MINER training, so that most prompts are all right."""
    args = MinerGRPOConfig(output_dir=folder, learning_rate=1e-4, max_steps=steps, **SETTINGS)
    trainer = MinerGRPOTrainer(
        find_model(arithmetic.NAME), math_reward, args, arithmetic.load_dataset("train")
    )
    trainer.train()
    trainer.save_model(folder)
    return folder


def measure(model: str, num_iterations: int, num_pairs: int, folder: str) -> dict[str, float]:
    grpo = Cycles(GRPOTrainer, GRPOConfig, model, folder, num_iterations)
    miner = Cycles(MinerGRPOTrainer, MinerGRPOConfig, model, folder, num_iterations)
    for warm_up in range(3):
        grpo.run(warm_up), miner.run(warm_up)
    miner.trainer._metrics["train"].clear()
    pairs = []
    for seed in range(100, 100 + num_pairs):
        order = (grpo, miner) if seed % 2 else (miner, grpo)
        taken = {cycles: cycles.run(seed) for cycles in order}
        pairs.append((*taken[grpo], *taken[miner]))
    whole = [miner_s / grpo_s for grpo_s, _, _, miner_s, _, _ in pairs]
    training = [miner_s / grpo_s for _, grpo_s, _, _, miner_s, _ in pairs]
    return {
        "ph": miner.metric("groups/ph"),
        "grpo": statistics.median(pair[0] for pair in pairs),
        "method": miner.metric("miner/seconds"),
        "whole": quartiles(whole),
        "training": quartiles(training),
        "memory": (
            statistics.median(pair[5] for pair in pairs)
            / statistics.median(pair[2] for pair in pairs)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="write the table to tests/bench/results"
    )
    parser.add_argument(
        "--pairs", type=int, default=40, help="pairs of generation cycles for each row"
    )
    parser.add_argument(
        "--steps", type=int, default=60, help="MINER steps behind the trained model"
    )
    options = parser.parse_args()
    # two threads that wait for each other say more about the machine than about the step
    torch.set_num_threads(1)

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        models = {
            "base": find_model(arithmetic.NAME),
            "trained": trained_model(str(Path(folder) / "m"), options.steps),
        }
        for case, num_iterations in (("(a) aligned", 1), ("(b) off-policy", 2)):
            for name, model in models.items():
                found = measure(model, num_iterations, options.pairs, folder)
                target = 1 + 0.35 * found["ph"] if num_iterations == 1 else 1.01
                rows.append(
                    [
                        case,
                        name,
                        f"{found['ph']:.0%}",
                        f"{found['grpo']:.2f}",
                        "{1:.3f} ({0:.3f} to {2:.3f})".format(*found["whole"]),
                        f"{target:.3f}",
                        "{1:.3f} ({0:.3f} to {2:.3f})".format(*found["training"]),
                        f"{found['method'] * 1e3:.1f}",
                        f"{found['memory']:.3f}",
                    ]
                )
    header = [
        "case",
        "model",
        "PH share",
        "GRPO cycle, s",
        "ratio MINER/GRPO, median (quartiles)",
        "target",
        "the same without generation",
        "method, ms (mean)",
        "peak memory, ratio",
    ]
    text = f"# Overhead of a training step\n\n{__doc__.splitlines()[0]}\n\n{machine()}\n"
    text += f"{options.pairs} pairs a row. `python tests/bench/overhead.py --write`\n\n"
    report("overhead", text + table(header, rows))
    ratios = [(float(row[4].split()[0]), float(row[5])) for row in rows]
    promise(all(ratio <= most + 0.02 for ratio, most in ratios), "each ratio within its target")


if __name__ == "__main__":
    main()
