"""What `log_token_credit` costs: to make and write the records, on disk, and in a training.

    python tests/bench/token_credit.py [--write]

Records: 64 rollouts of made-up tokens, without the forward; median of 5. Training: the README's model, every step
recorded; a run at the default of every 10th step pays a tenth of it. GRPO has no log-probs where it is strictly
on-policy, so there the records include a forward.
"""

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from common import machine, report, table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer
from trl_miner.data import arithmetic, base_model
from trl_miner.methods import Rollouts
from trl_miner.methods.groups import group_kinds
from trl_miner.rewards import math_reward
from trl_miner.trainer import token_credit

ROLLOUTS, GENERATIONS, REPEATS, STEPS = 64, 16, 5, 40
KNOBS = dict(gamma=2.0, lambda_max=1.5e-3, credit="focal", intrinsic="nll")


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """As Qwen's is made, with as many tokens as this text gives."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), vocab_size=20_000)
    tokenizer.train_from_iterator([Path(module.__file__).read_text() for module in (torch, token_credit)], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def record(num_tokens: int) -> tuple[float, int]:
    """Seconds to make and write the records of a batch, and bytes on disk."""
    generator = torch.Generator().manual_seed(0)
    tokenizer = byte_level_tokenizer()
    shape = (ROLLOUTS, num_tokens)
    ids = torch.randint(0, len(tokenizer), shape, generator=generator)
    ones = torch.ones(shape, dtype=torch.long)
    output = {"completion_ids": ids, "completion_mask": ones, "prompt_ids": ids[:, :200], "prompt_mask": ones[:, :200]}
    logps = -torch.rand(shape, generator=generator).square()
    rewards = torch.ones(ROLLOUTS)
    score = lambda names, is_row_N: {"old_logps": logps, "mask": ones}  # noqa: E731
    kinds = group_kinds(rewards, GENERATIONS)
    rollouts = Rollouts(rewards, torch.zeros(ROLLOUTS), ones, kinds, GENERATIONS, score)
    seconds, size = [], 0
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            chosen = token_credit._own_rows(output, rollouts, logps, rewards.bool())
            records = token_credit.credit_table(chosen, 10, rollouts, rewards, KNOBS, tokenizer)
            path = token_credit.write_credit(folder, records, {"step": 10, "num_generations": GENERATIONS})
            seconds.append(time.perf_counter() - start)
            size = path.stat().st_size
    return statistics.median(seconds), size


def step_times(estimator: str) -> tuple[float, float]:
    """Median seconds of a training step, and of the records within it."""

    class Timed(MinerGRPOTrainer):
        def training_step(self, *args, **kwargs):
            return timed("step", super().training_step, *args, **kwargs)

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._credit.record = partial(timed, "records", self._credit.record)

    def timed(name, call, *args, **kwargs):
        start = time.perf_counter()
        found = call(*args, **kwargs)
        times[name].append(time.perf_counter() - start)
        return found

    times: dict[str, list[float]] = {"step": [], "records": []}
    with tempfile.TemporaryDirectory() as folder:
        args = MinerGRPOConfig(
            folder, advantage_estimator=estimator, max_steps=STEPS, per_device_train_batch_size=128,
            num_generations=GENERATIONS, max_completion_length=64, log_token_credit=1,
            report_to="none", save_strategy="no", logging_steps=STEPS, use_cpu=True, bf16=False, disable_tqdm=True,
        )  # fmt: skip
        model = base_model.find_model(arithmetic.NAME)
        Timed(str(model), math_reward, args, arithmetic.load_dataset("train", size=1000)).train()
    return statistics.median(times["step"][2:]), statistics.median(times["records"][2:])


def main() -> None:
    records = [
        [
            f"{num_tokens:,}",
            f"{1000 * seconds:.0f} ms",
            f"{size / 2**20:.1f} MiB",
            f"{size / ROLLOUTS / num_tokens:.1f}",
        ]
        for num_tokens in (100, 1000, 8192)
        for seconds, size in [record(num_tokens)]
    ]
    training = []
    for estimator in ("miner", "grpo"):
        step, of_it = step_times(estimator)
        share = of_it / (step - of_it) / 10
        training.append([estimator, f"{1000 * step:.0f} ms", f"{1000 * of_it:.0f} ms", f"{share:.2%}"])
    report(
        "token_credit",
        f"# Token records\n\n{machine()}\n\n{ROLLOUTS} rollouts of a batch, without the forward\n\n"
        + table(["tokens each", "time", "on disk", "bytes per token"], records)
        + f"\n\nTraining, batches of 128 rollouts, {ROLLOUTS} of them recorded, {STEPS} steps\n\n"
        + table(["method", "a recorded step", "of which the records", "added to a run, at every 10th step"], training)
        + "\n\nOff, which is the default, nothing is looked at, kept or written: 0.",
    )


if __name__ == "__main__":
    main()
