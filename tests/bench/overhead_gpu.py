"""What a training step costs more with MINER than with TRL's GRPO at the size of Qwen3-0.6B, in bf16 on a GPU.

    python tests/bench/overhead_gpu.py [--write] [--rows 256] [--tokens 1024] [--pairs 10]

The model has random weights, and the rollouts are random tokens, so that nothing is downloaded and the generation
costs nothing: what is compared is the training alone, one generation batch and its optimizer step. Half of the prompts
are all right. (a) TRL has no old log-probs, so MINER forwards the all-right rows. (b) The sampler's log-probs are
there, as with vLLM. Both trainers take turns on the same rollouts.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import AS_TRL, machine, quartiles, report, table
from datasets import Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer
from trl_miner.data import arithmetic
from trl_miner.trainer.run import RunState

# config.json of Qwen/Qwen3-0.6B-Base
SIZE = dict(
    hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
    head_dim=128, vocab_size=151936, tie_word_embeddings=True,
)  # fmt: skip
GENERATIONS = 16


class Turn:
    """One trainer, stepped by hand on random rollouts."""

    def __init__(self, cls, config_cls, size, options, has_logps, folder):
        self.options, self.has_logps = options, has_logps
        on_gpu = torch.cuda.is_available()
        own = AS_TRL if config_cls is MinerGRPOConfig else {}  # what makes the step faster: step.py measures that
        args = config_cls(
            output_dir=folder, learning_rate=0.0, num_generations=GENERATIONS, max_completion_length=options.tokens,
            per_device_train_batch_size=options.micro_batch, report_to="none", disable_tqdm=True, save_strategy="no",
            gradient_accumulation_steps=options.rows // options.micro_batch, bf16=on_gpu, use_cpu=not on_gpu,
            logging_steps=1000, gradient_checkpointing=True, **own,
        )  # fmt: skip
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(**size)).to(torch.bfloat16 if on_gpu else torch.float32)
        prompts = Dataset.from_list([{"prompt": f"{i}"} for i in range(4 * options.rows)])
        tokenizer = arithmetic.build_tokenizer()
        self.trainer = cls(model, self.reward, args, prompts, processing_class=tokenizer, rollout_func=self.rollouts)
        self.trainer.create_optimizer()
        if cls is MinerGRPOTrainer:
            RunState.of(self.trainer).sampler_is_checked = True  # its log-probs are nobody's
        self.trainer.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        self.batches = iter(self.trainer.get_train_dataloader())

    def rollouts(self, prompts, trainer):
        shape = (len(prompts), self.options.tokens)
        ids = torch.randint(10, trainer.model.config.vocab_size, shape, generator=torch.Generator().manual_seed(1))
        logprobs = [[-1.0] * shape[1]] * shape[0] if self.has_logps else None
        return {"prompt_ids": [[5, 6]] * shape[0], "completion_ids": ids.tolist(), "logprobs": logprobs}

    @staticmethod
    def reward(prompts, completions, **kwargs):
        """Groups take turns: all right, or right and wrong."""
        return [1.0 if (row // GENERATIONS) % 2 == 0 else float(row % 2) for row in range(len(prompts))]

    def run(self, seed):
        """Seconds, and peak GPU memory in GiB (0 without a GPU)."""
        batches = [next(self.batches) for _ in range(self.trainer.args.gradient_accumulation_steps)]
        set_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        self.trainer.model.train()
        for batch in batches:
            self.trainer.training_step(self.trainer.model, batch, None)
        self.trainer.optimizer.step()
        self.trainer.model.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
        return time.perf_counter() - start, peak


def measure(size, options, has_logps, folder):
    grpo = Turn(GRPOTrainer, GRPOConfig, size, options, has_logps, folder)
    miner = Turn(MinerGRPOTrainer, MinerGRPOConfig, size, options, has_logps, folder)
    grpo.run(0), miner.run(0)
    pairs = []
    for seed in range(options.pairs):
        order = (grpo, miner) if seed % 2 else (miner, grpo)
        taken = {turn: turn.run(seed) for turn in order}
        pairs.append((*taken[grpo], *taken[miner]))
    metrics = miner.trainer._metrics["train"]
    return [
        f"{statistics.mean(metrics['groups/ph']):.0%}",
        f"{statistics.median(pair[0] for pair in pairs):.2f}",
        "{1:.3f} ({0:.3f} to {2:.3f})".format(*quartiles([pair[2] / pair[0] for pair in pairs])),
        f"{statistics.median(metrics['miner/seconds']) * 1e3:.0f}",
        f"{max(pair[1] for pair in pairs):.1f}",
        f"{max(pair[3] for pair in pairs):.1f}",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table to tests/bench/results")
    parser.add_argument("--rows", type=int, default=256, help="rollouts of the generation batch")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of each rollout")
    parser.add_argument("--micro_batch", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=10, help="pairs of steps for each row")
    parser.add_argument("--tiny", action="store_true", help="a model that a processor can try this script with")
    options = parser.parse_args()
    if not (torch.cuda.is_available() or options.tiny):
        sys.exit("This benchmark needs a GPU: none is here. --tiny tries the script without one.")
    size = SIZE | (dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2) if options.tiny else {})
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, has_logps in (("(a) own forward", False), ("(b) sampler's log-probs", True)):
            rows.append([name, *measure(size, options, has_logps, str(Path(folder)))])
    header = ["case", "PH share", "GRPO step, s", "ratio MINER/GRPO, median (quartiles)", "method, ms (median)"]
    header += ["peak GRPO, GiB", "peak MINER, GiB"]
    text = f"# Overhead of a training step on a GPU\n\n{__doc__.splitlines()[0]}\n\n{machine()}\n"
    text += (
        f"{options.rows} rollouts of {options.tokens} tokens, {options.pairs} pairs a row, both trainers in memory."
    )
    text += "\n\n"
    report("overhead_gpu", text + table(header, rows))


if __name__ == "__main__":
    main()
