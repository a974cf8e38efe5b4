"""Padding of a batch: how much of it each row needs, and a batch without the rest.

# B rows of a batch; P padded prompt tokens, T padded completion tokens
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def row_lengths(batch: dict[str, Any]) -> np.ndarray:
    """Return (B, 2), the tokens of each row's prompt and completion."""
    columns = []
    # At least 2 of a completion: TRL takes a tensor with one column for one number per row.
    for name, least in (("prompt_mask", 1), ("completion_mask", 2)):
        mask = batch[name].bool()
        size = mask.shape[1]
        places = torch.arange(size, 0, -1) if name == "prompt_mask" else torch.arange(1, size + 1)
        columns.append((mask * places.to(mask.device)).amax(dim=1).clamp(min=least).clamp(max=size))
    return torch.stack(columns, dim=1).cpu().numpy()


def shorten(batch: dict[str, Any], num_prompt: int, num_completion: int) -> dict[str, Any]:
    """Return a batch with the last `num_prompt` prompt tokens and the first `num_completion` completion tokens."""
    size = batch["completion_ids"].shape[1]
    short = dict(batch)
    for name, value in batch.items():
        if name in ("prompt_ids", "prompt_mask"):
            short[name] = value[:, value.shape[1] - num_prompt :]
        elif isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == size:
            short[name] = value[:, :num_completion]
    return short


def padded_length(batch: dict[str, Any]) -> int:
    """Return the tokens of a row, prompt and completion, padding included."""
    return int(batch["prompt_ids"].shape[1] + batch["completion_ids"].shape[1])


def loss_mask(batch: dict[str, Any]) -> Tensor:
    """Return (B, T), non-zero at the tokens that count: those of the completion that are not a tool's."""
    mask_BT = batch["completion_mask"]
    return mask_BT * batch["tool_mask"] if "tool_mask" in batch else mask_BT
