"""Sample several answers to each prompt on a CPU: a prompt is read once, and an answer that has ended is left out.

transformers' `generate` reads a prompt once for each of its answers, and computes all until the longest has ended.
Otherwise the samples are those of `trl_miner.evaluation.seeded_sampling`: each depends on its seed alone, so arms with
the same seed have the same rollouts as long as their models agree.

# P prompts, N samples of them, T tokens so far, V tokens of the vocabulary
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from trl_miner.evaluation.seeded_sampling import race


@torch.no_grad()
def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    *,
    end: int,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> list[list[int]]:
    """Return a completion of each prompt, in tokens. Equal prompts are neighbors; the token `end` ends it."""
    groups = [(list(prompt), len([*same])) for prompt, same in groupby(prompts)]
    width = max(len(prompt) for prompt, _ in groups)
    tokens_PT = torch.tensor([[end] * (width - len(prompt)) + prompt for prompt, _ in groups])
    mask_PT = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in groups])
    cache = DynamicCache(config=model.config)

    def forward(tokens_NT: Tensor, mask_NT: Tensor) -> Tensor:
        """Return the logits (N, V) behind tokens that follow those of the cache."""
        places_NT = (mask_NT.cumsum(1) - 1).clamp(min=0)[:, -tokens_NT.shape[1] :]
        found = model(tokens_NT, mask_NT, places_NT, cache, use_cache=True, logits_to_keep=1)
        return found.logits[:, -1]

    logits_NV = forward(tokens_PT, mask_PT)
    left_N = torch.tensor([place for place, (_, count) in enumerate(groups) for _ in range(count)])
    cache.batch_select_indices(left_N)
    logits_NV, mask_NT, seeds_N = logits_NV[left_N], mask_PT[left_N], torch.tensor(seeds)
    rows_N = torch.arange(len(prompts))
    completions: list[list[int]] = [[] for _ in prompts]
    for position in range(max_new_tokens):
        tokens_N = race(logits_NV, seeds_N[rows_N], position, temperature=temperature, top_p=top_p).argmax(dim=1)
        for row, token in zip(rows_N.tolist(), tokens_N.tolist(), strict=True):
            completions[row].append(token)
        left_N = (tokens_N != end).nonzero().flatten()
        if not len(left_N) or position + 1 == max_new_tokens:
            break
        cache.batch_select_indices(left_N)
        rows_N, mask_NT = rows_N[left_N], torch.nn.functional.pad(mask_NT[left_N], (0, 1), value=1)
        logits_NV = forward(tokens_N[left_N].unsqueeze(1), mask_NT)
    return completions


def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Sample the rollouts of a batch: TRL's `rollout_func`."""
    tokenizer = trainer.processing_class
    prompt_ids = tokenizer(prompts)["input_ids"]
    seeds = torch.randint(2**62, (len(prompts),)).tolist()  # of the stream that a resumed run goes on with
    with trainer.casting_once():
        completion_ids = sample(
            trainer.accelerator.unwrap_model(trainer.model),
            prompt_ids,
            seeds,
            end=tokenizer.eos_token_id,
            max_new_tokens=trainer.max_completion_length,
            temperature=trainer.temperature,
        )
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}
