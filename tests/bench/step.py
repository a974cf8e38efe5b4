"""How long a training step takes with MinerGRPOTrainer, as a share of what it takes with TRL's
GRPOTrainer.

    python tests/bench/step.py [--write] [--pairs 10] [--lengths "heavy tail"] [--gpu] [--tiny]

All trainers of a table row live in one process and take turns, another one first in each round.
They start from the same weights, learn at rate 0, and handle the same completions: random tokens.
A step is all training_step calls of an optimizer step and the optimizer.step() after them, less the
generation. On a CPU its time is the processor's, which other work on the machine hardly moves.
--gpu is the size of Qwen3-0.6B with random weights, in bf16 with gradient checkpointing, up to 2048
tokens. --tiny tries the script.
"""

import argparse
import statistics
import sys
import tempfile
import time
from typing import Any, NamedTuple

import torch
from common import machine, promise, quartiles, report, table
from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

sys.path.insert(0, str(__import__("pathlib").Path(__file__).parent.parent))
from harness import build_tokenizer, problems  # noqa: E402

from trl_miner.trainer.config import MinerGRPOConfig  # noqa: E402
from trl_miner.trainer.trainer import MinerGRPOTrainer  # noqa: E402

# config.json of Qwen/Qwen3-0.6B-Base
LARGE = dict(
    hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
    head_dim=128, vocab_size=151936, tie_word_embeddings=True,
)  # fmt: skip
SMALL = dict(
    hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    head_dim=64, vocab_size=512,
)  # fmt: skip
ROWS, ACCUMULATION, GENERATIONS = 8, 8, 8
# of TRL's time on a CPU, with GRPO and with MINER
TARGETS = {"heavy tail": (0.25, 0.24), "uniform": (0.5, 0.5), "constant": (1.03, 0.75)}


class Variant(NamedTuple):
    """A trainer and its settings; `all_right` is the share of groups without a wrong completion."""

    name: str
    settings: dict[str, Any]
    all_right: float


TRL = Variant("TRL", {}, 0.5)
VARIANTS = (
    TRL,
    Variant("GRPO", {"advantage_estimator": "grpo"}, 0.0),
    Variant("MINER", {}, 0.5),
)


class Turn:
    """One trainer, stepped by hand."""

    def __init__(self, variant: Variant, lengths: str, size: Any, cap: int, gpu: bool, folder: str):
        self.variant, self.lengths, self.cap, self.vocabulary = (
            variant,
            lengths,
            cap,
            size["vocab_size"],
        )
        self.seed, self.generating, self.gpu = 0, 0.0, gpu
        self.clock = time.perf_counter if gpu else time.process_time
        config, kind = (MinerGRPOConfig, MinerGRPOTrainer)
        if variant is TRL:
            config, kind = (GRPOConfig, GRPOTrainer)
        args = config(
            output_dir=folder, learning_rate=0.0, num_generations=GENERATIONS, max_completion_length=cap,
            per_device_train_batch_size=ROWS, gradient_accumulation_steps=ACCUMULATION, report_to="none",
            save_strategy="no", logging_steps=1000, bf16=gpu, use_cpu=not gpu, disable_tqdm=True,
            gradient_checkpointing=gpu, **variant.settings,
        )  # fmt: skip
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(**size, pad_token_id=0, eos_token_id=1))
        if gpu:
            model = model.to("cuda", torch.bfloat16)
        rows = problems(ROWS * ACCUMULATION // GENERATIONS)
        self.batch = [row for row in rows for _ in range(GENERATIONS)]
        self.trainer = kind(
            model, self.reward, args, rows, processing_class=build_tokenizer(), rollout_func=self.rollouts
        )  # fmt: skip
        self.trainer.create_optimizer()
        if gpu:  # which train() does
            model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
        self.trainer.current_gradient_accumulation_steps = ACCUMULATION

    def rollouts(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Random tokens, the same for every trainer."""
        start, generator = self.clock(), torch.Generator().manual_seed(self.seed)

        def tokens(lengths: list[int]) -> list[list[int]]:
            ids = torch.randint(2, self.vocabulary, (sum(lengths),), generator=generator)
            return [row.tolist() for row in ids.split(lengths)]

        normal = torch.randn(len(prompts), generator=generator)
        shares = {"heavy tail": (normal - 0.5).exp() / 4, "uniform": torch.special.ndtr(normal)}
        share = shares.get(self.lengths, torch.ones_like(normal))  # of the cap
        size = len(prompts) // GENERATIONS
        prompt_lengths = torch.randint(4, 33, (size,), generator=generator).tolist()
        completion_ids = tokens((share * self.cap).ceil().int().clamp(1, self.cap).tolist())
        prompt_ids = [ids for ids in tokens(prompt_lengths) for _ in range(GENERATIONS)]
        self.generating += self.clock() - start
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}

    def reward(self, prompts: list[str], **kwargs: Any) -> list[float]:
        """The first groups all right, as many as the variant wants; in the others, every other
        completion."""
        num_right = round(self.variant.all_right * len(prompts) // GENERATIONS) * GENERATIONS
        return [1.0 if row < num_right else float(row % 2) for row in range(len(prompts))]

    def run(self, seed: int) -> float:
        """Return the seconds of the optimizer step on one generation batch."""
        trainer = self.trainer
        set_seed(seed)
        self.seed, self.generating, start = seed, 0.0, self.clock()
        trainer.model.train()
        for micro_step in range(1, ACCUMULATION + 1):
            is_last = micro_step == ACCUMULATION
            trainer.accelerator.gradient_state._set_sync_gradients(is_last)
            trainer.training_step(trainer.model, self.batch, None)
        trainer.optimizer.step()
        trainer.model.zero_grad()
        trainer.state.global_step += 1
        if self.gpu:
            torch.cuda.synchronize()
        return self.clock() - start - self.generating


def compare(lengths: str, size: Any, cap: int, gpu: bool, pairs: int) -> dict[str, list[float]]:
    """Return the seconds of each trainer on the same completions, in rotating order."""
    with tempfile.TemporaryDirectory() as folder:
        turns = [Turn(variant, lengths, size, cap, gpu, folder) for variant in VARIANTS]
        for turn in turns:
            turn.run(10**6)
        taken: dict[str, list[float]] = {turn.variant.name: [] for turn in turns}
        for seed in range(pairs):
            first = seed % len(turns)
            for turn in turns[first:] + turns[:first]:
                taken[turn.variant.name].append(turn.run(seed))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write tests/bench/results/step.md")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of steps for each row")
    parser.add_argument("--gpu", action="store_true", help="the size of Qwen3-0.6B, on a GPU")
    parser.add_argument("--tiny", action="store_true", help="a size to try the script with")
    parser.add_argument("--lengths", nargs="+", choices=TARGETS, default=[*TARGETS])
    options = parser.parse_args()
    if not options.gpu:
        # two threads that wait for each other say more about the machine than about the step
        torch.set_num_threads(1)
    size, cap = (LARGE, 2048) if options.gpu else (SMALL, 64 if options.tiny else 512)
    rows, kept = [], True
    for lengths in options.lengths:
        taken = compare(lengths, size, cap, options.gpu, options.pairs)
        row = [lengths, f"{statistics.median(taken['TRL']):.2f}"]
        for name, target in zip(("GRPO", "MINER"), TARGETS[lengths], strict=True):
            ratios = [own / trl for own, trl in zip(taken[name], taken["TRL"], strict=True)]
            low, median, high = quartiles(ratios)
            row.append(f"{median:.3f} ({low:.3f} to {high:.3f})")
            kept &= median <= target
        rows.append(row)
        print(*row, file=sys.stderr, flush=True)
    text = (
        f"# Time of a training step\n\n{__doc__.splitlines()[0]}\n\n{machine()}\n"
        f"{ROWS} rows x {ACCUMULATION} micro-batches, groups of {GENERATIONS}, up to {cap} tokens;"
        f" {options.pairs} pairs a row. Ratios to TRL: the median of the pairs, and their quartiles."
        " Heavy tail: log-normal (sigma 1) with a mean of a quarter of the longest, cut there;"
        " uniform: from 1 on; constant: all the longest. With GRPO every group is mixed, and no"
        " completion is left out. With MINER half of the groups are all right, as for TRL, which"
        f" computes the same whatever they are. Targets on a CPU: {TARGETS}.\n"
        f"`python tests/bench/step.py {' '.join(sys.argv[1:])}`\n\n"
    )
    report(
        "step_gpu" if options.gpu else "step",
        text + table(["lengths", "TRL, s", "GRPO", "MINER"], rows),
    )
    promise(kept or options.gpu or options.tiny, f"at most {TARGETS} of TRL's step")


if __name__ == "__main__":
    main()
