"""Sample several answers to each prompt on a CPU, and train on them: what is equal is computed
once.

Short answers to short problems are often the same. transformers' `generate` reads a prompt once for
each of its answers, and computes all answers until the longest has ended. Here answers that agree
so far share a forward, and an answer that has ended is left out. Otherwise the samples are those of
`trl_miner.evaluation.seeded_sampling`: each depends on its seed alone, so arms with the same seed
have the same rollouts as long as their models agree. A training step computes equal rollouts once,
too, and of the vocabulary's scores those of completions alone.

# P prompts, N samples of them, K distinct beginnings of these, R distinct rows of B, T tokens so
far, V tokens of the
# vocabulary
"""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any
from unittest.mock import patch

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
    """Return a completion of each prompt, in tokens. Equal prompts are neighbors; the token `end`
    ends it."""
    groups = [(list(prompt), len([*same])) for prompt, same in groupby(prompts)]
    width = max(len(prompt) for prompt, _ in groups)
    tokens_PT = torch.tensor([[end] * (width - len(prompt)) + prompt for prompt, _ in groups])
    mask_KT = torch.tensor(
        [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in groups]
    )
    cache = DynamicCache(config=model.config)

    def forward(tokens_KT: Tensor, mask_KT: Tensor) -> Tensor:
        """Return the logits (K, V) behind tokens that follow those of the cache."""
        places_KT = (mask_KT.cumsum(1) - 1).clamp(min=0)[:, -tokens_KT.shape[1] :]
        found = model(tokens_KT, mask_KT, places_KT, cache, use_cache=True, logits_to_keep=1)
        return found.logits[:, -1]

    logits_KV = forward(tokens_PT, mask_KT)
    places_N = torch.tensor(
        [place for place, (_, count) in enumerate(groups) for _ in range(count)]
    )
    rows_N, seeds_N = torch.arange(len(prompts)), torch.tensor(seeds)
    completions: list[list[int]] = [[] for _ in prompts]
    for position in range(max_new_tokens):
        scores_NV = race(
            logits_KV,
            seeds_N[rows_N],
            position,
            temperature=temperature,
            top_p=top_p,
            places_B=places_N,
        )
        tokens_N = scores_NV.argmax(dim=1)
        for row, token in zip(rows_N.tolist(), tokens_N.tolist(), strict=True):
            completions[row].append(token)
        goes_on_N = tokens_N != end
        if not goes_on_N.any() or position + 1 == max_new_tokens:
            break
        rows_N, num_tokens = rows_N[goes_on_N], logits_KV.shape[1]
        # What a sample has so far, as a number: its beginning so far, and its next token.
        begun_N = places_N[goes_on_N] * num_tokens + tokens_N[goes_on_N]
        begun_K, places_N = begun_N.unique(return_inverse=True)
        before_K = begun_K // num_tokens
        cache.batch_select_indices(before_K)
        mask_KT = torch.nn.functional.pad(mask_KT[before_K], (0, 1), value=1)
        logits_KV = forward((begun_K % num_tokens).unsqueeze(1), mask_KT)
    return completions


def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Sample the rollouts of a batch: TRL's `rollout_func`. The training then computes equal
    rollouts once."""
    tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    prompt_ids = tokenizer(prompts)["input_ids"]
    # of the stream that a resumed run goes on with
    seeds = torch.randint(2**62, (len(prompts),)).tolist()
    with trainer.casting_once():
        completion_ids = sample(
            model,
            prompt_ids,
            seeds,
            end=tokenizer.eos_token_id,
            max_new_tokens=trainer.max_completion_length,
            temperature=trainer.temperature,
        )
    if getattr(model.forward, "func", None) is not forward_once:
        model.forward = partial(forward_once, model.forward)
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}


def forward_once(forward: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what a model's forward returns, which computes equal rows once where TRL asks for
    log-probs."""
    if not kwargs.get("fused_lm_head"):
        return forward(*args, **kwargs)
    names = ("input_ids", "attention_mask", "labels")
    rows_B3T = torch.stack([kwargs[name] for name in names], dim=1)
    rows_R3T, places_B = rows_B3T.unique(dim=0, return_inverse=True)
    # TRL takes this path on GPUs alone, as accelerators other than these compile for each number of
    # tokens.
    with patch("trl.trainer.utils._use_triton", lambda device: True):
        found = forward(
            *args, **{**kwargs, **dict(zip(names, rows_R3T.unbind(dim=1), strict=True))}
        )
    of_rows = {
        name: value[places_B]
        for name, value in found.items()
        if value.dim() and len(value) == len(rows_R3T)
    }
    return type(found)(**{**found, **of_rows})
