"""Sampling with transformers, in `trl-miner eval` and while a model trains."""

import random
from typing import Any

import torch
from transformers import GenerationConfig

Tokens = list[list[int]]  # of prompts or completions


def sample_seed(seed: int, problem: str, number: int) -> int:
    """Return the seed of a sample: 31 bits, because some servers take no more."""
    return random.Random(f"{seed} {problem} {number}").getrandbits(31)


@torch.no_grad()
def sample_tokens(
    model: Any,
    tokenizer: Any,
    prompts: Tokens,
    config: GenerationConfig,
    seed: int,
    synced: bool = False,
) -> Tokens:
    """Return the tokens of a completion of each prompt, with the one that ends it.

    PyTorch's random state is set anew, so that the noise of a token depends on the seed, its
    position and its place in the batch alone: two models are sampled with the same noise.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer, which has a token to pad with.
        prompts: The tokens of each; one batch.
        config: How to sample.
        seed: Of the batch.
        synced: Whether other processes sample, too: weights in shards need all until the last ends.
    """
    torch.manual_seed(seed)
    padded = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    padded = padded.to(model.device)
    sampled = model.generate(**padded, generation_config=config, synced_gpus=synced)
    rows = sampled[:, padded["input_ids"].shape[1] :].tolist()
    ends = {*config.eos_token_id}
    stops = [next((at for at, token in enumerate(row, 1) if token in ends), None) for row in rows]
    return [row[:stop] for row, stop in zip(rows, stops, strict=True)]
