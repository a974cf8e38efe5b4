"""Statistics of the logits, found during a forward that never holds more than a block of them.

# B rows of this process, T padded completion tokens, H hidden size, V vocabulary size
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# Elements of logits held in one go: 128 MiB in float32, twice.
LOGITS_BLOCK = 2**25
# Of a sampled token: its logit over the temperature; how far the log-sum-exp of all logits, over
# the temperature, lies above their mean.
STATISTICS = ("token_logits", "self_certainty")
# How models change logits after their head, where nobody looks here.
_CHANGES = """
    final_logit_softcapping logits_soft_cap output_logit_soft_cap logit_scale
    output_multiplier lm_head_multiplier logits_scaling
    """.split()


def check_logits(model: Any) -> None:
    """Refuse a model that changes its logits after its head.

    Raises:
        ValueError: It does.
    """
    config = model.config.get_text_config()
    if changed := [name for name in _CHANGES if getattr(config, name, None) not in (None, 1.0)]:
        raise ValueError(
            f"The advantage estimator reads the logits as the model's head gives them, and"
            f" {type(model).__name__} changes them afterwards: {', '.join(changed)}. Use another"
            " estimator for it."
        )


@contextmanager
def logit_statistics(
    model: Any, ids_BT: Tensor, temperature: float, num_tokens: int
) -> Iterator[dict[str, Tensor]]:
    """Yield a dict that holds `STATISTICS`, (B, T) each, once the model has run over the B rows in
    chunks, in order.

    A hook on the body of the model, where the last hidden states are: a fused head is never called
    as a module, and gives no logits away.

    Args:
        model: A causal language model, or PEFT's.
        ids_BT: The sampled tokens.
        temperature: Of the sampling.
        num_tokens: Of the largest chunk on any process, padding included. It decides how often the
            head is called: a sharded head is gathered at every call, so that all processes must
            make equally many.
    """
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    head, length = model.get_output_embeddings(), ids_BT.shape[1]
    found = {name: torch.zeros(ids_BT.shape, device=ids_BT.device) for name in STATISTICS}
    num_calls, seen = -(-num_tokens * head.weight.shape[0] // LOGITS_BLOCK), 0

    def look(module: Any, arguments: Any, output: Any) -> None:
        nonlocal seen
        hidden_bTH = output.last_hidden_state[:, -length - 1 : -1]
        rows = slice(seen, seen := seen + len(hidden_bTH))
        pieces = zip(
            hidden_bTH.flatten(0, 1).tensor_split(num_calls),
            ids_BT[rows].flatten().tensor_split(num_calls),
            strict=True,
        )
        measured = [_of_tokens(head, *piece, temperature) for piece in pieces]
        for name, values in zip(STATISTICS, zip(*measured, strict=True), strict=True):
            found[name][rows] = torch.cat(values).view(-1, length)

    handle = model.base_model.register_forward_hook(look)
    try:
        yield found
    finally:
        handle.remove()


@torch.no_grad()
def _of_tokens(
    head: Any, hidden_KH: Tensor, ids_K: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return `STATISTICS` of K sampled tokens, (K,) each."""
    logits = head(hidden_KH.to(head.weight.dtype)).float() / temperature
    token_logits = logits.gather(1, ids_K.unsqueeze(1)).squeeze(1)
    return token_logits, logits.logsumexp(dim=1) - logits.mean(dim=1)
