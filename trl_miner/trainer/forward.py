"""TRL's forward over prompts and completions, without needless padding.

# B rows of prompts and completions; P and T padded tokens of prompts and completions
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from torch import Tensor

from .compact_step import row_lengths

if TYPE_CHECKING:
    from .trainer import MinerGRPOTrainer


def packed_forward(
    accelerator: Accelerator, model: Any, ids: Tensor, mask: Tensor, num_tokens: int, entropy: bool
) -> Any:
    """Return what TRL's forward does, three times (B, T) or None, of the real tokens in one row,
    without a mask: positions that begin anew part the sequences.

    Args:
        accelerator: The trainer's.
        model: Whose attention kernel has variable lengths.
        ids: (B, P + T).
        mask: (B, P + T), 1 at real tokens.
        num_tokens: T.
        entropy: Whether to return entropies.
    """
    is_token, labels = mask.bool(), ids.clone()
    labels[:, :-num_tokens] = -100
    columns = ids, mask.cumsum(1) - 1, labels
    real, places, labels = (column[is_token][None] for column in columns)
    with accelerator.autocast():
        out = model(input_ids=real, position_ids=places, labels=labels, fused_lm_head=True)
    found = torch.cat([out.log_probs, out.entropy][: 1 + entropy])
    scores = found.new_zeros(len(found), *mask.shape)
    scores[:, is_token] = torch.nn.functional.pad(found, (1, 0))  # nothing predicts the first
    return *scores[..., -num_tokens:], *[None] * (3 - len(scores))


def forward_by_length(
    trainer: "MinerGRPOTrainer",
    forward: Callable[..., Any],
    ids: Tensor,
    mask: Tensor,
    num_tokens: int,
    batch_size: int,
    entropy: bool,
) -> Any:
    """Forward many rows without a gradient, rows of like lengths together. Every process makes as
    many forwards.

    Args:
        trainer: With its way to cut rows.
        forward: Takes ids, mask, tokens and `entropy` of some rows.
        batch_size: Rows whose padded tokens are the budget.
        ids, mask, num_tokens, entropy: As in `packed_forward`.
    """
    P = ids.shape[1] - num_tokens
    lengths_B2 = row_lengths(mask[:, :P], mask[:, P:])
    order = lengths_B2.sum(1).argsort(descending=True, stable=True)
    lengths_W = trainer.accelerator.gather(lengths_B2[order]).view(-1, *lengths_B2.shape)
    longest = lengths_W.amax(0)
    scores = torch.zeros(1 + entropy, len(order), num_tokens, device=order.device)
    for start, end in trainer.cutting.cut(
        longest, batch_size * int(longest.amax(0).sum()), len(order)
    ):
        rows, (prompt, completion) = order[start:end], longest[start:end].amax(0).tolist()
        kept = min(completion, num_tokens)
        columns = slice(max(0, P - prompt), P + kept)
        found = forward(ids[rows, columns], mask[rows, columns], kept, entropy)
        scores[:, rows, :kept] = torch.stack(found[: len(scores)]).float()
    return *scores, *[None] * (3 - len(scores))
