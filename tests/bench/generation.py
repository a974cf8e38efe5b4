"""What a generation batch of a small language model costs on a CPU, by what generates it.

    python tests/bench/generation.py models/SmolLM2-135M-Instruct-sft --write

8 prompts x 8 rollouts of at most 24 tokens, as recipes/SmolLM2-135M-Instruct trains. Each way takes
turns with the first one. CPU seconds of the process, on one thread. vLLM's row needs vLLM's CPU
build.
"""

import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from common import report_table
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from trl_miner.evaluation.seeded_sampling import sample_all

ROUNDS = 3
PROMPTS = [f"Question: What is {a} + {a + 7}?\nAnswer:" for a in range(11, 19) for _ in range(8)]
MAX_TOKENS = 24


def with_transformers(
    name: str, dtype: torch.dtype, *, autocast: bool, **settings: Any
) -> Callable[[], object]:
    """Return a function that samples one generation batch."""
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).eval()
    is_continuous = settings.pop("is_continuous", False)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = GenerationConfig(max_new_tokens=MAX_TOKENS, do_sample=True, top_k=0, **ids, **settings)

    @torch.no_grad()
    def sample() -> object:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if is_continuous:
                rows = [tokenizer(prompt).input_ids for prompt in PROMPTS]
                return model.generate_batch(rows, config, progress_bar=False)
            return model.generate(
                **tokenizer(PROMPTS, return_tensors="pt", padding=True), generation_config=config
            )

    return sample


def with_own_seeds(name: str) -> Callable[[], object]:
    """Return the same where each rollout is a function of a seed of its own, as held-out scores are
    sampled."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval()
    ids = [tokenizer(prompt).input_ids for prompt in PROMPTS]

    def sample() -> object:
        with torch.autocast("cpu", torch.bfloat16):
            return sample_all(model, tokenizer, ids, range(len(ids)), max_new_tokens=MAX_TOKENS)

    return sample


def with_vllm(name: str) -> Callable[[], object]:
    one_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    os.environ |= one_process | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    from vllm import LLM, SamplingParams

    engine = LLM(name, dtype="bfloat16", max_model_len=256, enforce_eager=True)
    return lambda: engine.generate(
        PROMPTS, SamplingParams(max_tokens=MAX_TOKENS, top_k=-1), use_tqdm=False
    )


def ways(name: str) -> dict[str, Callable[[], Callable[[], object]]]:
    """Return how each way is made ready, the recipe's first."""
    bf16, fp32 = torch.bfloat16, torch.float32
    found: dict[str, Callable[[], Callable[[], object]]] = {
        "32-bit weights, computed in bf16 (the recipe's)": lambda: with_transformers(
            name, fp32, autocast=True
        ),
        "the same, each rollout from a seed of its own, as scores are sampled": (
            lambda: with_own_seeds(name)
        ),
        "32-bit weights, computed in 32 bits": lambda: with_transformers(
            name, fp32, autocast=False
        ),
        "bf16 weights": lambda: with_transformers(name, bf16, autocast=False),
        "static cache, bf16 weights": lambda: with_transformers(
            name, bf16, autocast=False, cache_implementation="static"
        ),
        "continuous batching, bf16 weights": lambda: with_transformers(
            name, bf16, autocast=False, is_continuous=True
        ),
    }
    if importlib.util.find_spec("vllm"):
        found["vLLM's CPU build, bf16 weights"] = lambda: with_vllm(name)
    return found


def seconds(sample: Callable[[], object]) -> float:
    torch.manual_seed(0)
    start = time.process_time()
    sample()
    return time.process_time() - start


def main(name: str) -> None:
    torch.set_num_threads(1)
    (first, make_first), *others = ways(name).items()
    baseline = make_first()
    seconds(baseline)  # warm up
    of_first, rows = [], []
    for way, make in others:
        sample = make()
        seconds(sample)
        pairs = [(seconds(sample), seconds(baseline)) for _ in range(ROUNDS)]
        of_first += [pair[1] for pair in pairs]
        ratios = [own / of_baseline for own, of_baseline in pairs]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append([way, f"{statistics.median(own for own, _ in pairs):.1f} s", spread])
        print(*rows[-1], flush=True)
    rows.insert(0, [first, f"{statistics.median(of_first):.1f} s", "1"])
    text = " ".join((__doc__ or "").split("\n\n")[2].split())
    report_table(
        "generation",
        "Generation on a CPU",
        text,
        ["Way", "CPU time, median", "of the first (range)"],
        rows,
    )


if __name__ == "__main__":
    main(next(argument for argument in sys.argv[1:] if not argument.startswith("--")))
