"""Sampling with transformers, where a sample depends on its own seed and nothing else.

`generate` draws all rows of a batch from one stream, so that a sample depends on its batch and on
what was sampled before. Here each row has a stream of its own, from which it takes noise once per
position: the number of processes, the batch and a resumption do not matter, and a longer limit
gives a longer sample that begins alike.
"""

# B rows of a batch, V tokens of the vocabulary

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)


def sample_seed(seed: int, problem: str, number: int) -> int:
    """Return the seed of a sample: 31 bits, because some servers take no more."""
    return random.Random(f"{seed} {problem} {number}").getrandbits(31)


class Race(LogitsProcessor):
    """Turns logits into scores whose largest is a sample of their softmax.

    An exponential race: with E_v ~ Exp(1), argmin_v E_v / p_v is a sample of p (the Gumbel-max
    trick).
    """

    def __init__(self, seeds: list[int], device: Any) -> None:
        self.streams = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.ahead: list[Tensor] = []  # (B, V) noise of the next positions

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if not self.ahead:  # of a small vocabulary several positions at once, which is quicker
            V = scores.shape[1]
            block_V = torch.empty(max(1, 4096 // V), V, device=scores.device)
            drawn = [block_V.exponential_(generator=stream).clone() for stream in self.streams]
            self.ahead = [*torch.stack(drawn).clamp_min(1e-30).log().unbind(1)]
        return scores.log_softmax(dim=1) - self.ahead.pop(0)


@torch.no_grad()
def sample_tokens(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[list[int]],
    seeds: Sequence[int],
    *,
    limit: int,
    temperature: float,
    top_p: float,
    batch_size: int,
) -> Iterator[tuple[int, list[int], bool]]:
    """Sample one completion of each prompt; yield its place, its tokens with the one that ends it,
    and whether it was cut off at the limit.

    Prompts of like length go together. The model's own settings of generation, such as top_k, do
    not count, apart from the tokens that end a completion.

    Args:
        model: A causal language model; it comes back in its mode.
        tokenizer: Its tokenizer, which has a token to pad with.
        prompts: The tokens of each.
        seeds: Of each sample.
        limit: Tokens of a completion, at least 1.
        temperature: 0: greedy.
        top_p: Of the nucleus.
        batch_size: Completions at a time.
    """
    kept, was_training = model.generation_config, model.training
    # a chat model has several; a tensor or a number alone
    ends = {*torch.tensor(kept.eos_token_id or []).flatten().tolist(), tokenizer.eos_token_id}
    config = GenerationConfig(
        max_new_tokens=limit, eos_token_id=[*ends], pad_token_id=tokenizer.pad_token_id
    )
    # transformers keeps the processes in step with ZeRO-3 and FSDP1 by itself, not with FSDP2
    is_sharded = any(hasattr(weight, "full_tensor") for weight in model.parameters())
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    # `generate` takes from the model's own settings whatever it is not given
    model.generation_config = GenerationConfig()
    model.eval()
    try:
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            padded = tokenizer.pad(
                {"input_ids": [prompts[place] for place in places]},
                padding_side="left",
                return_tensors="pt",
            ).to(model.device)
            drawing = LogitsProcessorList()
            if temperature:
                drawing += [TemperatureLogitsWarper(float(temperature))]
                drawing += [TopPLogitsWarper(top_p)] if top_p < 1 else []
                drawing += [Race([seeds[place] for place in places], model.device)]
            sampled = model.generate(
                **padded,
                generation_config=config,
                logits_processor=drawing,
                synced_gpus=is_sharded or None,
            )
            rows = sampled[:, padded["input_ids"].shape[1] :].tolist()
            for place, row in zip(places, rows, strict=True):
                end = next((at + 1 for at, token in enumerate(row) if token in ends), None)
                yield place, row[:end], end is None
    finally:
        model.generation_config = kept
        model.train(was_training)
