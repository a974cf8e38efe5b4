"""What several test files and the worker scripts share: a policy, problems, rewards, a config."""

import zlib
from pathlib import Path

import torch
from datasets import Dataset

from trl_miner import MinerGRPOConfig
from trl_miner.data import arithmetic


def build_policy(folder: Path) -> str:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = arithmetic.build_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def crc(text: str) -> int:
    return zlib.crc32(text.encode())


def problems(count: int = 48) -> Dataset:
    """Problems whose kinds under `mixed_reward` take turns, so that every batch of three prompts has one of each."""
    rows = list(arithmetic.load_dataset("train", size=4 * count))
    by_kind = [[row for row in rows if crc(row["prompt"]) % 3 == kind] for kind in range(3)]
    turns = [row for turn in zip(*by_kind, strict=False) for row in turn]
    return Dataset.from_list(turns[:count])


def mixed_reward(prompts, completions, **kwargs):
    """By prompt: a third all right, a third all wrong, a third by a coin that the completion tosses."""
    kinds = [crc(prompt) % 3 for prompt in prompts]
    coins = [float(crc(completion) % 2) for completion in completions]
    return [[1.0, 0.0, coin][kind] for kind, coin in zip(kinds, coins, strict=True)]


def never_all_right(prompts, completions, **kwargs):
    """As `mixed_reward`, with the all-right third at 0.5: homogeneous, but not correct."""
    return [0.5 if crc(p) % 3 == 0 else r for p, r in zip(prompts, mixed_reward(prompts, completions), strict=True)]


def config(output_dir, cls=MinerGRPOConfig, **overrides):
    settings = dict(
        output_dir=str(output_dir),
        max_steps=5,
        per_device_train_batch_size=12,
        num_generations=4,
        max_completion_length=10,
        shuffle_dataset=False,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    return cls(**{**settings, **overrides})


def metrics_of(trainer, without=("time", "seconds", "runtime", "per_second")):
    """The log, less what a clock measured."""
    return [
        {key: value for key, value in log.items() if not any(word in key for word in without)}
        for log in trainer.state.log_history
    ]
