"""Attention over TRL's trees of rollouts without its kernel, which needs a Hopper GPU: for CPUs and
other GPUs."""

from typing import Any

import torch
from torch import Tensor


def runs_tree_kernel() -> bool:
    """Return whether TRL's attention kernel runs here: on Hopper GPUs, and AMD's."""
    if not torch.cuda.is_available():
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability()[0] == 9


def tree_attention_anywhere(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    tree_kv_index: Tensor,
    tree_cu_seqlens_q: Tensor,
    tree_cu_seqlens_k: Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return what TRL's kernel computes, on any device: each segment attends to its own path,
    causally, both ending at the same token.

    Raises:
        ValueError: The model caps its attention scores (`softcap`).
    """
    if softcap:
        raise ValueError(
            f"Attention without TRL's kernel knows no softcap: got {softcap}. Train on a Hopper"
            " GPU, or another model."
        )
    segments = []
    queries, keys = tree_cu_seqlens_q.tolist(), tree_cu_seqlens_k.tolist()
    for q0, q1, k0, k1 in zip(queries, queries[1:], keys, keys[1:], strict=False):
        path = tree_kv_index[k0:k1]
        shape, end = (q1 - q0, k1 - k0), k1 - k0 - (q1 - q0)
        sees = torch.ones(shape, dtype=torch.bool, device=query.device).tril(end)
        if sliding_window:
            sees = sees.triu(end - sliding_window + 1)
        segments.append(
            torch.nn.functional.scaled_dot_product_attention(
                query[:, :, q0:q1],
                key[:, :, path],
                value[:, :, path],
                attn_mask=sees,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    return torch.cat(segments, dim=2).transpose(1, 2), None
