"""Sample completions with transformers. Imports torch and transformers on use."""

from collections.abc import Sequence
from typing import Any

import torch


@torch.no_grad()
def sample_completions(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    *,
    num_samples: int,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    batch_size: int = 256,
    seed: int = 0,
) -> list[list[str]]:
    """`num_samples` completions of each plain-text prompt, without special tokens.

    The caller's random state stays as it was. Results depend on `seed` and `batch_size`.

    Args:
        model: A causal language model, unwrapped, on its device.
        tokenizer: Its tokenizer, padding on the left.
        prompts: Plain text, one per problem.
        num_samples: Completions per prompt.
        max_new_tokens: Cutoff, in tokens.
        temperature: Of the sampling; 1.0 is the model itself.
        top_p: Nucleus; 1.0 keeps every token.
        batch_size: Completions per call of `generate`.
        seed: Of the sampling.

    Returns:
        One list of `num_samples` strings per prompt, in order.
    """
    repeated = [prompt for prompt in prompts for _ in range(num_samples)]
    completions: list[str] = []
    was_training = model.training
    model.eval()
    devices = [model.device] if model.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            for start in range(0, len(repeated), batch_size):
                batch = tokenizer(repeated[start : start + batch_size], return_tensors="pt", padding=True)
                tokens = model.generate(
                    input_ids=batch["input_ids"].to(model.device),
                    attention_mask=batch["attention_mask"].to(model.device),
                    do_sample=True,
                    temperature=temperature,
                    top_p=top_p,
                    top_k=0,
                    max_new_tokens=max_new_tokens,
                    pad_token_id=tokenizer.pad_token_id,
                )
                texts = tokenizer.batch_decode(tokens[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
                completions.extend(texts)
    finally:
        model.train(was_training)
    return [completions[i * num_samples : (i + 1) * num_samples] for i in range(len(prompts))]
