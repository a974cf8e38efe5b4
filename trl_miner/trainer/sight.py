"""What a model sees besides the tokens of a row: padding, and the other rows of its micro-batch. It is asked itself.

# B rows of a batch; P padded prompt tokens, T padded completion tokens
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..distributed import current_world
from .padding import NO_TRIM, PaddingTrim


class Sight(NamedTuple):
    """How far the log-probs of a row move, as a share of their spread, with what is no part of the row.

    Other tokens in the same places move them by nothing, to the last bit, where a model does not see them. Where
    padding goes, tokens get other positions and sums another shape, and rounding moves them too.
    """

    left: float  # other tokens in the padding on the left of prompts
    right: float  # other tokens in the padding on the right of completions
    rows: float  # other tokens in the other rows
    without_left: float  # no padding on the left
    without_right: float  # no padding on the right


UNKNOWN = Sight(*[math.inf] * 5)
_MOST_IDS = 32
_LENGTHS = ((5, 9), (3, 6))  # of prompt and completion of the rows that are forwarded
_PADDING = 40  # on each side at most: a recurrent state takes some tokens to fill


def measure_sight(logps: Callable[[dict[str, Any]], Tensor], ids: Sequence[int], pad_id: int, longest: int) -> Sight:
    """Return what a model sees, by forwards of two rows of a few tokens.

    Args:
        logps: Returns (B, T) log-probs of the completions of a batch such as TRL's.
        ids: Token ids to make the rows of, each once; with fewer than two nothing is known.
        pad_id: The id of padding.
        longest: Tokens of a row at most, padding included.
    """
    padding = min(_PADDING, (longest - sum(map(max, zip(*_LENGTHS, strict=True)))) // 2)
    if padding < 4 or len(ids) < 2:
        return UNKNOWN
    batch = _padded_batch(ids, pad_id, padding)
    is_token_BT = batch["completion_mask"].bool()

    def changed(name: str, where: Tensor) -> dict[str, Any]:
        """Return the batch with other tokens in some places."""
        # A token of `ids` becomes the next of them, and so another; all padding has one id.
        places = (batch[name].unsqueeze(-1) == torch.tensor(ids)).int().argmax(dim=-1)
        drawn = torch.arange(where.numel()).view_as(where).flip(1)
        is_token = batch[name.replace("_ids", "_mask")].bool()
        others = torch.tensor(ids)[torch.where(is_token, places + 1, drawn) % len(ids)]
        return {**batch, name: torch.where(where, others, batch[name])}

    def counted(batch: dict[str, Any]) -> Tensor:
        return logps(batch).float().cpu()[batch["completion_mask"].bool()]

    def move(batch: dict[str, Any], num_tokens: int | None = None) -> float:
        moved = float((counted(batch) - padded)[:num_tokens].square().mean().sqrt()) / spread
        return moved if math.isfinite(moved) else math.inf

    padded = counted(batch)
    spread = float(padded.std())
    if not spread > 0:
        return UNKNOWN
    is_second_B1 = torch.tensor([[False], [True]])
    return Sight(
        left=move(changed("prompt_ids", batch["prompt_mask"] == 0)),
        right=move(changed("completion_ids", batch["completion_mask"] == 0)),
        rows=move(changed("completion_ids", is_second_B1 & is_token_BT), int(is_token_BT[0].sum())),
        without_left=move(PaddingTrim(completions=False).trim(batch)),
        without_right=move(PaddingTrim(prompts=False).trim(batch)),
    )


def _padded_batch(ids: Sequence[int], pad_id: int, padding: int) -> dict[str, Any]:
    """Return a batch as TRL pads it, of `_LENGTHS` and at least `padding` tokens more on each side."""
    batch: dict[str, Any] = {}
    place = 0
    for part, lengths in zip(("prompt", "completion"), zip(*_LENGTHS, strict=True), strict=True):
        size = max(lengths) + padding
        rows, mask = torch.full((len(lengths), size), pad_id), torch.zeros(len(lengths), size, dtype=torch.long)
        for row, length in enumerate(lengths):
            tokens = slice(size - length, size) if part == "prompt" else slice(length)
            rows[row, tokens] = torch.tensor([ids[(place + i) % len(ids)] for i in range(length)])
            mask[row, tokens] = 1
            place += length
        batch |= {f"{part}_ids": rows, f"{part}_mask": mask}
    return batch


def plain_ids(tokenizer: Any, config: Any) -> list[int]:
    """Return some ids of a vocabulary, the same in every process, none of which is special to tokenizer or model."""
    size = min(len(tokenizer), config.get_text_config().vocab_size)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {*tokenizer.all_special_ids, *(id for id, token in added.items() if token.special)}
    for settings in (config, config.get_text_config()):  # such as an image's place, which a text alone does not have
        values = [value for name, value in vars(settings).items() if "_token_" in name]
        special |= {id for value in values for id in (value if isinstance(value, list) else [value]) if id is not None}
    # Sampled from a range, since a vocabulary may have a quarter of a million ids.
    drawn = random.Random(0).sample(range(size), min(size, _MOST_IDS + len(special)))
    return [id for id in drawn if id not in special][:_MOST_IDS]


def ask_model(trainer: Any) -> tuple[Sight, str]:
    """Return what the trainer's model sees, the same on every process, and, where it could not be asked, why.

    Every process must call it.
    """
    device, tokenizer = trainer.accelerator.device, trainer.processing_class
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor has one
    sight, error = UNKNOWN, ""
    config = trainer.model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or math.inf
    try:
        with torch.no_grad(), trainer.undoing_draws(), trainer.evaluating():
            sight = measure_sight(
                lambda batch: trainer.forwards.policy({name: rows.to(device) for name, rows in batch.items()})[0],
                plain_ids(tokenizer, trainer.model.config),
                tokenizer.pad_token_id,
                int(min(longest, 200)),
            )
    except Exception as reason:  # a model that takes no text alone: it keeps its padding
        error = f" ({type(reason).__name__}: {reason})"
    of_each_W3 = current_world().gather(torch.tensor([sight], device=device))
    return Sight(*of_each_W3.amax(dim=0).tolist()), error


def rounding_error(trainer: Any) -> float:
    """Return the relative rounding error of the trainer's forwards."""
    dtypes = {weight.dtype for weight in trainer.model.parameters() if weight.is_floating_point()}
    dtypes |= {"bf16": {torch.bfloat16}, "fp16": {torch.float16}}.get(trainer.accelerator.mixed_precision, set())
    eps = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    if trainer.accelerator.device.type == "cuda":
        eps = max(eps, 2**-10)  # TF32
    return min(eps, torch.finfo(torch.bfloat16).eps)


def unseen_padding(sight: Sight, config: Any, eps: float) -> tuple[PaddingTrim, str, bool]:
    """Return what padding can go for a model, why not all of it ("": all can go), and whether rows see each other.

    Measured with random weights of 45 families, on a CPU: other tokens in padding move log-probs by 0.04 to 0.8 of
    their spread where they are seen (RecurrentGemma, RWKV), else by 0. Without the padding, absolute positions move
    them by 0.1 to 1, rounding by up to 2e-6 in float32 and by 0.02 in bf16 (0.05 where it turns a router).

    Args:
        sight: What `measure_sight` has found.
        config: The model's.
        eps: The relative rounding error of its forwards.
    """
    fine, coarse = max(eps / 2, 2e-5), max(12 * eps, 1e-4)
    if getattr(config.get_text_config(), "num_experts_per_tok", None):
        fine = coarse  # other tokens go to other experts, which changes the shape of their products
    trim, reason = _seen_far_away(config)
    # bf16 rounds rotary positions, which are relative, about as coarsely as some absolute positions show.
    may_be_absolute = not _rope_kinds(config)
    sees_left = sight.left > fine or sight.without_left > (fine if may_be_absolute else coarse)
    if sight.rows > fine or sight.right > fine or sight.without_right > coarse:
        return NO_TRIM, "its log-probs depend on padding or on the other rows", sight.rows > fine
    if sees_left and trim.prompts:
        return PaddingTrim(prompts=False), "its log-probs depend on the padding before them", False
    return trim, reason, False


def _rope_kinds(config: Any) -> list[dict[str, Any]]:
    """Return the settings of a model's rotary positions, of each kind of layer; none: it has no such positions."""
    config = config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    by_layer = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    return by_layer if rope or getattr(config, "rope_theta", None) is not None else []


def _seen_far_away(config: Any) -> tuple[PaddingTrim, str]:
    """Return what padding can go by what a model sees only beyond thousands of tokens, which only its config tells."""
    by_layer = _rope_kinds(config)
    kinds = {str(kind.get("rope_type", kind.get("type", "default"))) for kind in by_layer}
    if kinds & {"dynamic", "longrope"}:
        return NO_TRIM, f"its {'/'.join(sorted(kinds))} RoPE depends on the padded length"
    if getattr(config.get_text_config(), "attention_chunk_size", None):
        return PaddingTrim(prompts=False), "its attention is in chunks, which start at the padding"
    if any("llama_4_scaling_beta" in kind for kind in by_layer):
        return PaddingTrim(prompts=False), "its attention is scaled by absolute positions"
    return PaddingTrim(), ""
