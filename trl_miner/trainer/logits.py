"""Statistics of the logits, found during a forward that never holds more than a chunk of them.

# B rolled-out rows, T padded completion tokens, K scored tokens, H hidden size, V vocabulary size
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# Elements of logits held in one go: 128 MiB in float32, twice, and half of it again in the model's
# own type.
LOGITS_BLOCK = 2**25
# Of a sampled token: its logit over the temperature; how far the log-sum-exp of all logits, over
# the temperature, lies above their mean.
STATISTICS = ("token_logits", "self_certainty")
# How models change logits after their head, where `watch_logits` does not look.
_CHANGES = """
    final_logit_softcapping logits_soft_cap output_logit_soft_cap logit_scale
    output_multiplier lm_head_multiplier logits_scaling
    """.split()


def check_logits(model: Any, estimator: str) -> None:
    """Refuse a model that changes its logits after its head."""
    config = model.config.get_text_config()
    changed = [name for name in _CHANGES if getattr(config, name, None) not in (None, 1.0)]
    if changed:
        raise ValueError(
            f"The estimator {estimator} takes the logits as the model's head gives them, and"
            f" {type(model).__name__} changes them afterwards: {', '.join(changed)}. Use another"
            " estimator for it."
        )


@contextmanager
def watch_logits(
    model: Any, token_ids_BT: Tensor, mask_BT: Tensor, *, temperature: float, elements: int
) -> Iterator[dict[str, Tensor]]:
    """Yield a dict that holds `STATISTICS`, (B, T) each and 0 at padding, once the model has run
    over the B rows.

    A hook on the body of the model, where the last hidden states are: a fused head is never called
    as a module, and gives no logits away. The model may see the rows in chunks, in order;
    `elements` is the number of logits of the largest chunk on any process. It decides how often the
    head is called, because a sharded head is gathered at every call, so that all processes must
    make equally many.
    """
    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's
    head = model.get_output_embeddings()
    num_tokens = token_ids_BT.shape[1]
    statistics = {
        name: torch.zeros(token_ids_BT.shape, device=token_ids_BT.device) for name in STATISTICS
    }
    num_calls, seen = -(-elements // LOGITS_BLOCK), 0

    def look(module: Any, arguments: Any, output: Any) -> None:
        nonlocal seen
        hidden = output.last_hidden_state[:, -num_tokens - 1 : -1]
        rows = slice(seen, seen + len(hidden))
        seen += len(hidden)
        is_token, ids = mask_BT[rows].bool(), token_ids_BT[rows]
        parts = zip(
            hidden[is_token].tensor_split(num_calls),
            ids[is_token].tensor_split(num_calls),
            strict=True,
        )
        measured = [_of_tokens(head, *part, temperature) for part in parts]
        for name, values in zip(STATISTICS, zip(*measured, strict=True), strict=True):
            statistics[name][rows][is_token] = torch.cat(values)

    handle = model.base_model.register_forward_hook(look)
    try:
        yield statistics
    finally:
        handle.remove()


@torch.no_grad()
def _of_tokens(
    head: Any, hidden_KH: Tensor, token_ids_K: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return `STATISTICS` of K sampled tokens, (K,) each."""
    logits = head(hidden_KH.to(head.weight.dtype)).float()
    logits /= temperature
    token_logits = logits.gather(1, token_ids_K.unsqueeze(1)).squeeze(1)
    return token_logits, logits.logsumexp(dim=1) - logits.mean(dim=1)
