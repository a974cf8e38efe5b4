"""The padding of a batch: what of it may go, and the rows without it.

# B rows of a batch; P padded prompt tokens, T padded completion tokens
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class PaddingTrim:
    """The padding that can go without changing what the model says of the other tokens.

    Attributes:
        prompts: Whether padding on the left of prompts can go.
        completions: Whether padding on the right of completions can go.
        multiple: Lengths stay multiples of this number of tokens.
    """

    prompts: bool = True
    completions: bool = True
    multiple: int = 1

    def lengths(self, batch: dict[str, Any]) -> np.ndarray:
        """Return the tokens of each row's prompt and completion, with the padding that has to stay.

        Args:
            batch: With `prompt_mask` (B, P) and `completion_mask` (B, T).

        Returns:
            (B, 2), at least 1 and 2: TRL takes a tensor with one column for one number per row.
        """
        columns = []
        for name, is_trimmed, least in (("prompt_mask", self.prompts, 1), ("completion_mask", self.completions, 2)):
            mask = batch[name].bool()
            size = mask.shape[1]
            if is_trimmed and size > 0:
                places = torch.arange(size, 0, -1) if name == "prompt_mask" else torch.arange(1, size + 1)
                lengths = (mask * places.to(mask.device)).amax(dim=1).clamp(min=least)
                lengths = (-(-lengths // self.multiple) * self.multiple).clamp(max=size)
            else:
                lengths = torch.full((len(mask),), size, device=mask.device)
            columns.append(lengths)
        return torch.stack(columns, dim=1).cpu().numpy()

    def trim(self, batch: dict[str, Any], lengths: np.ndarray | None = None) -> dict[str, Any]:
        """Return the batch without the padding that none of its rows needs.

        Args:
            batch: One of TRL's micro-batches.
            lengths: (B, 2) as `lengths` returns them, where they are known.
        """
        longest = (self.lengths(batch) if lengths is None else lengths).max(axis=0)
        return shorten(batch, *longest.tolist())


NO_TRIM = PaddingTrim(prompts=False, completions=False)


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


def safe_trim(config: Any, multiple: int | None) -> tuple[PaddingTrim, str]:
    """Return what padding can go for a model, and why not all of it.

    A model whose positions are relative does not see how much padding stands on the left. Others do, and a few change
    their positions with the length of the whole batch.

    Args:
        config: The model's configuration.
        multiple: Lengths stay multiples of this; None: 1.

    Returns:
        The trim, and the reason in words ("": all padding can go).
    """
    config = config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    by_layer = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    kinds = {str(kind.get("rope_type", kind.get("type", "default"))) for kind in by_layer}
    if kinds & {"dynamic", "longrope"}:
        return NO_TRIM, f"its {'/'.join(sorted(kinds))} RoPE depends on the padded length"
    if getattr(config, "attention_chunk_size", None):
        return PaddingTrim(False, True, multiple or 1), "its attention is in chunks, which start at the padding"
    if not rope and getattr(config, "rope_theta", None) is None:
        return PaddingTrim(False, True, multiple or 1), "its positions may be absolute, and then start at the padding"
    return PaddingTrim(True, True, multiple or 1), ""
