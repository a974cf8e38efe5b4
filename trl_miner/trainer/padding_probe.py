"""Probe whether a model's log-probs depend on padding, or on the other rows of a micro-batch.

The log-probs of a short row are computed twice, with other tokens wherever the model should not look. They move by 0
to the last bit, or, with random weights of 45 families, by 0.04 to 0.8 of their spread (RecurrentGemma, RWKV). What
depends on positions, the model's config says.
"""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LENGTHS = (5, 9), (3, 6)  # of prompt and completion of the two rows
MOST_PADDING = 40  # on each side: a recurrent state takes some tokens to fill
MOST_IDS = 32


def probe_padding(
    logps: Callable[[dict[str, Any]], Tensor], ids: list[int], pad_id: int, config: Any, eps: float
) -> float:
    """Return how far log-probs depend on what is no part of their row: above 1, more than rounding explains.

    Args:
        logps: Returns (2, T) log-probs of the completions of a batch such as TRL's.
        ids: Token ids to draw from, each once.
        pad_id: The id of padding.
        config: The model's text config.
        eps: The relative rounding error of a forward.
    """
    longest = getattr(config, "max_position_embeddings", None) or 200
    num_padding = min(MOST_PADDING, (longest - sum(LENGTHS[0])) // 2)
    if num_padding < 4 or len(ids) < 2:
        return torch.inf
    num_prompt, num_completion = (length + num_padding for length in LENGTHS[0])
    place = torch.arange(-num_prompt, num_completion)
    mask = torch.stack([(place >= -prompt) & (place < completion) for prompt, completion in LENGTHS])
    drawn = torch.randint(len(ids), mask.shape, generator=torch.Generator().manual_seed(0))
    tokens, others = (torch.tensor(ids)[(drawn + shift) % len(ids)] for shift in (0, 1))
    is_elsewhere = ~mask | torch.tensor([[False], [True]])

    def score(ids: Tensor) -> Tensor:
        parts = {"prompt": slice(num_prompt), "completion": slice(num_prompt, None)}
        batch = {f"{part}_ids": ids[:, columns] for part, columns in parts.items()}
        batch |= {f"{part}_mask": mask[:, columns].long() for part, columns in parts.items()}
        return logps(batch)[0, : LENGTHS[0][1]].float().cpu()

    padded = torch.where(mask, tokens, pad_id)
    expected, found = score(padded), score(torch.where(is_elsewhere, others, padded))
    moved = (found - expected).square().mean().sqrt() / expected.std()
    # Other tokens go to other experts, which changes the shape of their products.
    has_experts = getattr(config, "num_experts_per_tok", None)
    limit = max(12 * eps, 1e-4) if has_experts else max(eps / 2, 2e-5)
    return float((moved / limit).nan_to_num(torch.inf, torch.inf))


def position_problem(config: Any) -> str | None:
    """Return why log-probs depend on the padding before their row, by a model's text config; None: they do not."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    of_layers = [kind for kind in rope.values() if isinstance(kind, dict)] or [rope]
    kinds = {str(kind.get("rope_type", kind.get("type", "default"))) for kind in of_layers}
    if kinds & {"dynamic", "longrope"}:
        return f"its {'/'.join(sorted(kinds))} RoPE depends on the padded length"
    if not rope and getattr(config, "rope_theta", None) is None:
        return "its positions are not rotary, so that they may be absolute"
    if getattr(config, "attention_chunk_size", None):
        return "its attention is in chunks, which start at the padding"
    if any("llama_4_scaling_beta" in kind for kind in of_layers):
        return "its attention is scaled by absolute positions"
    return None


def plain_ids(tokenizer: Any, config: Any) -> list[int]:
    """Return some ids of a vocabulary, the same in every process, that stand for plain text."""
    size = min(len(tokenizer), config.get_text_config().vocab_size)
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {})}
    # Sampled from a range, since a vocabulary may have a quarter of a million ids.
    drawn = random.Random(0).sample(range(size), min(size, MOST_IDS + len(special)))
    return [id for id in drawn if id not in special][:MOST_IDS]
