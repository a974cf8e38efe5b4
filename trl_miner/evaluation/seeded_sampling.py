r"""Sampling with transformers, where a sample depends on its own seed and nothing else.

transformers' `generate` draws all rows of a batch from one stream, so that a sample depends on its
batch and on what was sampled before. Here the noise of a row is a hash of (seed, position, token).
It does not depend on the batch, the number of processes, the device or a resumption, and a longer
budget gives a longer sample that begins alike.

The draw is an exponential race: with E_v ~ Exp(1), argmin_v E_v / p_v is a sample of p (the
Gumbel-max trick).
"""

# B rows of a batch, V tokens of the vocabulary, K rows of logits

import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TopPLogitsWarper,
)

from ..common.progress import track
from ..trainer.generation_settings import neutral_settings
from ..trainer.row_layout import ROW_WISE

# splitmix64, as signed numbers
_STEP = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
DEFAULT_BATCH_SIZE = 256
# On a CPU, this many numbers at a time: they stay in its cache, which takes an eighth of the time
# of all at once.
_IN_CACHE = 2**17
_SHARDED = ("full_tensor", "ds_id")  # of weights that FSDP2 and ZeRO-3 have in parts


def exponential_noise(seeds_B: Tensor, positions_B: Tensor, vocabulary: int) -> Tensor:
    """Return (B, V) float32 Exp(1) noise, above 0 and finite, from seeds, positions in completions,
    and tokens."""
    rows_B1 = _mix(_mix(seeds_B) + positions_B * _STEP).unsqueeze(1)
    tokens_V = torch.arange(vocabulary, device=seeds_B.device) * _STEP
    at_once = _IN_CACHE // vocabulary if seeds_B.device.type == "cpu" else len(seeds_B)
    noise_BV = torch.empty(len(seeds_B), vocabulary, device=seeds_B.device)
    for part_B1, noise_part_BV in zip(
        rows_B1.split(max(1, at_once)), noise_BV.split(max(1, at_once)), strict=True
    ):
        bits_BV = (_mix(part_B1 + tokens_V) >> 11) & (2**53 - 1)
        # In float32 a small u keeps its precision, and small u decide the race; the noise of a u
        # rounded to 1 must stay finite.
        uniform_BV = (bits_BV.float() + 0.5) * 2.0**-53
        noise_part_BV.copy_(-torch.log1p(-uniform_BV.clamp(max=1 - 2.0**-24)))
    return noise_BV


def _mix(values: Tensor) -> Tensor:
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        values = (values ^ _shift(values, shift)) * multiplier
    return values ^ _shift(values, 31)


def _shift(values: Tensor, by: int) -> Tensor:
    """Shift to the right as if the numbers were unsigned."""
    return (values >> by) & (2 ** (64 - by) - 1)


def race(
    logits_KV: Tensor,
    seeds_B: Tensor,
    position: int,
    *,
    temperature: float,
    top_p: float = 1.0,
    places_B: Tensor | None = None,
) -> Tensor:
    """Return (B, V) scores whose argmax is a sample of softmax(logits / temperature), cut to its
    nucleus.

    `places_B` says which row of the logits each sample is drawn from; None: each from its own.
    """
    scores_KV = logits_KV.float() / temperature
    if top_p < 1:
        scores_KV = TopPLogitsWarper(top_p)(None, scores_KV)
    scores_KV = scores_KV.log_softmax(dim=1)
    scores_BV = scores_KV if places_B is None else scores_KV[places_B]
    noise_BV = exponential_noise(seeds_B, torch.full_like(seeds_B, position), scores_BV.shape[1])
    return scores_BV.sub_(noise_BV.log_())


class _Race(LogitsProcessor):
    def __init__(self, seeds_B: Tensor, width: int, **settings: Any) -> None:
        self.seeds_B, self.width, self.settings = seeds_B, width, settings

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return race(scores, self.seeds_B, input_ids.shape[1] - self.width, **self.settings)


@torch.no_grad()
def sample_tokens(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    *,
    max_new_tokens: int | Sequence[int],
    temperature: float = 1.0,
    top_p: float = 1.0,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> Iterator[tuple[int, list[int], bool]]:
    """Sample one completion of each prompt, and yield (index, new tokens with the last one, cut off
    or not).

    Prompts are token ids; those of like length are sampled together, with less padding. The
    caller's random state does not change, and the model's own generation settings are not used,
    except for the tokens that end a completion.
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
    ends = _eos_token_ids(model, tokenizer)
    # masked: any will do
    pad = next((token for token in (tokenizer.pad_token_id, *ends) if token is not None), 0)
    # A batch has one limit: a row that went on for others would leave the context, where GPT-2 has
    # no positions.
    order = sorted(range(len(prompts)), key=lambda i: (limits[i], len(prompts[i])))
    was_training = model.training
    model.eval()
    try:
        for limit, group in groupby(order, key=lambda i: limits[i]):
            config = GenerationConfig(
                max_new_tokens=limit, eos_token_id=ends or None, pad_token_id=pad
            )
            alike = list(group)
            for start in range(0, len(alike), batch_size):
                rows = alike[start : start + batch_size]
                batch = [prompts[i] for i in rows], [seeds[i] for i in rows]
                with neutral_settings(model):
                    sample = sample_shared if can_share(model) else _sample_batch
                    sampled = sample(model, *batch, config, temperature, top_p)
                for i, row in zip(rows, sampled, strict=True):
                    end = next(
                        (place + 1 for place, token in enumerate(row) if token in ends), None
                    )
                    yield i, row[:end], end is None
    finally:
        model.train(was_training)


def _sample_batch(
    model: Any,
    prompts: list[Sequence[int]],
    seeds: list[int],
    config: GenerationConfig,
    temperature: float,
    top_p: float,
) -> list[list[int]]:
    ids, mask = (part.to(model.device) for part in _padded(prompts, config.pad_token_id))
    width, seeds_N = ids.shape[1], torch.tensor(seeds, device=model.device)
    drawing = [_Race(seeds_N, width, temperature=temperature, top_p=top_p)]
    tokens = model.generate(
        input_ids=ids,
        attention_mask=mask,
        generation_config=config,
        logits_processor=LogitsProcessorList(drawing if temperature > 0 else []),
        # transformers keeps the processes in step with ZeRO-3 and FSDP1 by itself, not with
        # accelerate's FSDP2
        synced_gpus=(
            True if any(hasattr(weight, "full_tensor") for weight in model.parameters()) else None
        ),
    )
    return tokens[:, width:].tolist()


def _padded(prompts: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of prompts that end together, and their mask."""
    rows = [torch.tensor(prompt, dtype=torch.long) for prompt in prompts]
    together = partial(pad_sequence, batch_first=True, padding_side="left")
    mask = together([torch.ones_like(row) for row in rows])
    return together(rows, padding_value=pad), mask


def can_share(model: Any) -> bool:
    """Return whether samples that agree so far may share a forward: on a CPU, where each row costs
    time of its own, of a model whose rows do not see each other, with whole weights."""
    return (
        model.device.type == "cpu"
        and model.config.model_type in ROW_WISE
        and not any(hasattr(weight, name) for weight in model.parameters() for name in _SHARDED)
    )


def sample_shared(
    model: Any,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    config: GenerationConfig,
    temperature: float,
    top_p: float,
) -> list[list[int]]:
    """Return what `_sample_batch` does, up to the end of each row, in some 0.6 of the time. Samples
    of one prompt read it once, and share forwards while they are alike; one that has ended is left
    out.

    # N samples, K distinct beginnings of them, T tokens so far
    """
    ends = torch.tensor(config.eos_token_id or [], dtype=torch.long)
    groups = [(prompt, len([*same])) for prompt, same in groupby(prompts)]
    tokens_KT, mask_KT = _padded([prompt for prompt, _ in groups], config.pad_token_id)
    # the place of each sample's beginning
    places_N = torch.arange(len(groups)).repeat_interleave(torch.tensor([n for _, n in groups]))
    cache = DynamicCache(config=model.config.get_text_config())
    plain = getattr(model, "get_base_model", lambda: model)()  # of an adapter
    # transformers 5.24 has renamed it, and warns of the old name
    names = inspect.signature(type(plain).forward).parameters
    cached = {"cache" if "cache" in names else "past_key_values": cache}
    rows_N, seeds_N = torch.arange(len(prompts)), torch.tensor(seeds)
    sampled: list[list[int]] = [[] for _ in prompts]
    for position in range(config.max_new_tokens):
        logits_KV = model(
            input_ids=tokens_KT,
            attention_mask=mask_KT,
            position_ids=(mask_KT.cumsum(1) - 1).clamp(min=0)[:, -tokens_KT.shape[1] :],
            use_cache=True,
            logits_to_keep=1,
            **cached,
        ).logits[:, -1]
        if temperature > 0:
            scores_NV = race(
                logits_KV,
                seeds_N[rows_N],
                position,
                temperature=temperature,
                top_p=top_p,
                places_B=places_N,
            )
            tokens_N = scores_NV.argmax(dim=1)
        else:
            tokens_N = logits_KV.argmax(dim=1)[places_N]
        for row, token in zip(rows_N.tolist(), tokens_N.tolist(), strict=True):
            sampled[row].append(token)
        goes_on_N = ~torch.isin(tokens_N, ends)
        if not goes_on_N.any():
            break
        # What a sample has so far, as a number: its beginning so far, and its next token.
        rows_N, size = rows_N[goes_on_N], logits_KV.shape[1]
        begun_K, places_N = (places_N[goes_on_N] * size + tokens_N[goes_on_N]).unique(
            return_inverse=True
        )
        cache.batch_select_indices(begun_K // size)
        mask_KT = torch.nn.functional.pad(mask_KT[begun_K // size], (0, 1), value=1)
        tokens_KT = (begun_K % size).unsqueeze(1)
    return sampled


def sample_all(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    *,
    title: str = "sampling",
    quiet: bool = True,
    **settings: Any,
) -> list[list[int]]:
    """Sample one completion of each prompt, as `sample_tokens` does, and return the tokens of
    all."""
    sampled = sample_tokens(model, tokenizer, prompts, seeds, **settings)
    return [
        tokens
        for _, tokens, _ in sorted(
            track(sampled, title, total=len(prompts), unit="samples", quiet=quiet)
        )
    ]


def _eos_token_ids(model: Any, tokenizer: Any) -> list[int]:
    """Return every token that ends a completion: the model's (a chat model has several) and the
    tokenizer's."""
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = [*(own if isinstance(own, list | tuple) else [own]), tokenizer.eos_token_id]
    return list(dict.fromkeys(token for token in ends if token is not None))
