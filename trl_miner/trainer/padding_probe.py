"""Probe whether a model's log-probs depend on padding, or on the other rows of a micro-batch.

A forward of two short rows is compared with two that have other tokens where the model should not look. This moves
log-probs by 0, to the last bit, or, with random weights of 45 families, by 0.04 to 0.8 of their spread
(RecurrentGemma, RWKV). What depends on positions, the model's config says: prompts keep their padding unless its
positions are rotary.
"""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .padding import NO_TRIM, PaddingTrim

LENGTHS = (5, 9), (3, 6)  # of prompt and completion of the two rows
MOST_PADDING = 40  # on each side: a recurrent state takes some tokens to fill
MOST_IDS = 32


def probe_padding(
    logps: Callable[[dict[str, Any]], Tensor], ids: list[int], pad_id: int, config: Any, eps: float
) -> Tensor:
    """Return (2,) whether log-probs depend on what lies before their row, and on what comes after it or is in another
    row: above 1, more than rounding explains. That takes three forwards.

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
        return torch.full((2,), torch.inf)
    num_prompt, num_completion = (length + num_padding for length in LENGTHS[0])
    place = torch.arange(-num_prompt, num_completion)
    mask = torch.stack([(place >= -prompt) & (place < completion) for prompt, completion in LENGTHS])
    drawn = torch.randint(len(ids), mask.shape, generator=torch.Generator().manual_seed(0))
    tokens, others = (torch.tensor(ids)[(drawn + shift) % len(ids)] for shift in (0, 1))
    is_before = ~mask & (place < 0)
    is_elsewhere = (~mask & (place >= 0)) | torch.tensor([[False], [True]])

    def score(ids: Tensor) -> Tensor:
        parts = {"prompt": slice(num_prompt), "completion": slice(num_prompt, None)}
        batch = {f"{part}_ids": ids[:, columns] for part, columns in parts.items()}
        batch |= {f"{part}_mask": mask[:, columns].long() for part, columns in parts.items()}
        return logps(batch)[0, : LENGTHS[0][1]].float().cpu()

    padded = torch.where(mask, tokens, pad_id)
    expected = score(padded)
    found = torch.stack([score(torch.where(where, others, padded)) for where in (is_before, is_elsewhere)])
    moves_2 = (found - expected).square().mean(dim=1).sqrt() / expected.std()
    # Other tokens go to other experts, which changes the shape of their products.
    has_experts = getattr(config, "num_experts_per_tok", None)
    limit = max(12 * eps, 1e-4) if has_experts else max(eps / 2, 2e-5)
    return (moves_2 / limit).nan_to_num(torch.inf, torch.inf)


def removable_padding(probed_2: Tensor, config: Any) -> tuple[PaddingTrim, str]:
    """Return what padding can go, by `probe_padding` and a model's text config, and why some stays ("": none does)."""
    before, elsewhere = (probed_2 > 1).tolist()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    of_layers = [kind for kind in rope.values() if isinstance(kind, dict)] or [rope]
    kinds = {str(kind.get("rope_type", kind.get("type", "default"))) for kind in of_layers}
    if elsewhere:
        return NO_TRIM, "its log-probs depend on padding or on the other rows"
    if kinds & {"dynamic", "longrope"}:
        return NO_TRIM, f"its {'/'.join(sorted(kinds))} RoPE depends on the padded length"
    reason = ""
    if before:
        reason = "its log-probs depend on the padding before them"
    elif not rope and getattr(config, "rope_theta", None) is None:
        reason = "its positions are not rotary, so that they may be absolute"
    elif getattr(config, "attention_chunk_size", None):
        reason = "its attention is in chunks, which start at the padding"
    elif any("llama_4_scaling_beta" in kind for kind in of_layers):
        reason = "its attention is scaled by absolute positions"
    return PaddingTrim(prompts=not reason), reason


def plain_ids(tokenizer: Any, config: Any) -> list[int]:
    """Return some ids of a vocabulary, the same in every process, none of which is special to tokenizer or model."""
    size = min(len(tokenizer), config.get_text_config().vocab_size)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {*tokenizer.all_special_ids, *(id for id, token in added.items() if token.special)}
    for settings in (config, config.get_text_config()):  # such as an image's place, which a text alone does not have
        values = [value for name, value in vars(settings).items() if "_token_" in name]
        special |= {id for value in values for id in (value if isinstance(value, list) else [value]) if id is not None}
    # Sampled from a range, since a vocabulary may have a quarter of a million ids.
    drawn = random.Random(0).sample(range(size), min(size, MOST_IDS + len(special)))
    return [id for id in drawn if id not in special][:MOST_IDS]
