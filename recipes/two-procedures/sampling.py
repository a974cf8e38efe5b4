"""Sample several answers to each prompt on a CPU, and train on them: what is equal is computed
once.

Short answers to short problems are often the same. So the rollouts of a training, too, come from
`sample_shared`: answers that agree so far share a forward, and each depends on its seed alone, so
that arms with the same seed have the same rollouts as long as their models agree. A training step
computes equal rollouts once, and of the vocabulary's scores those of completions alone.

# R distinct rows of B, T tokens
"""

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from transformers import GenerationConfig

from trl_miner.evaluation.seeded_sampling import sample_shared


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
    config = GenerationConfig(eos_token_id=end, pad_token_id=end, max_new_tokens=max_new_tokens)
    return sample_shared(model, prompts, seeds, config, temperature, top_p)


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
