"""Statistics of the logits, found during a forward that never holds more than a chunk of them.

# B rolled-out rows, T padded completion tokens, K scored tokens, H hidden size, V vocabulary size
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# Elements of logits held in one go: 256 MiB in float32, and half of it again in the model's own type.
LOGITS_BLOCK = 2**26
STATISTICS = ("token_logits", "self_certainty")
RAW_LOGPS = "raw_logps"  # the sampled tokens' log-probs at temperature 1, in nats
# How models change logits after their head, where `logit_statistics` does not look.
_CHANGES = (
    *("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"),
    *("logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling"),
)


@torch.no_grad()
def logit_statistics(
    head: Callable[[Tensor], Tensor],
    hidden_KH: Tensor,
    token_ids_K: Tensor,
    *,
    temperature: float = 1.0,
    num_chunks: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return (K,) the sampled tokens' logits and (K,) how far the log-sum-exp of all logits lies above their mean.

    `head` turns hidden states (k, H) into logits (k, V), which the temperature divides. It is called `num_chunks`
    times, on about K / num_chunks tokens each: a number of calls, not a size, because a sharded head is gathered at
    every call, so that all processes must make equally many.
    """
    token_logits, certainties = [], []
    for hidden, ids in zip(hidden_KH.tensor_split(num_chunks), token_ids_K.tensor_split(num_chunks), strict=True):
        logits = head(hidden).float().div_(temperature)
        token_logits.append(logits.gather(1, ids.unsqueeze(1)).squeeze(1))
        means, largest = logits.mean(dim=1), logits.amax(dim=1)
        # in place: torch.logsumexp would hold the chunk once more
        certainties.append(logits.sub_(largest.unsqueeze(1)).exp_().sum(dim=1).log_().add_(largest).sub_(means))
        del logits  # before the next chunk's are made
    return torch.cat(token_logits), torch.cat(certainties)


@torch.no_grad()
def raw_logps(
    head: Callable[[Tensor], Tensor], hidden_KH: Tensor, token_ids_K: Tensor, *, num_chunks: int = 1
) -> Tensor:
    """Return (K,) the sampled tokens' log-probs at temperature 1; as for `logit_statistics` otherwise."""
    logps = []
    for hidden, ids in zip(hidden_KH.tensor_split(num_chunks), token_ids_K.tensor_split(num_chunks), strict=True):
        logits = head(hidden).float()
        logps.append(logits.gather(1, ids.unsqueeze(1)).squeeze(1) - logits.logsumexp(dim=1))
        del logits
    return torch.cat(logps)


def changes_of_logits(model: Any) -> list[str]:
    """Return the settings by which a model changes its logits after its head."""
    config = model.config.get_text_config()
    return [name for name in _CHANGES if getattr(config, name, None) not in (None, 1.0)]


def check_logits(model: Any, estimator: str) -> None:
    """Refuse a model that changes its logits after its head."""
    changed = changes_of_logits(model)
    if changed:
        raise ValueError(
            f"The estimator {estimator} takes the logits as the model's head gives them, and "
            f"{type(model).__name__} changes them afterwards: {', '.join(changed)}. Use another estimator for it."
        )


@contextmanager
def watch_logits(
    model: Any,
    token_ids_BT: Tensor,
    mask_BT: Tensor,
    *,
    temperature: float,
    elements: int,
    names: Collection[str] = STATISTICS,
) -> Iterator[dict[str, Tensor]]:
    """Yield a dict that holds what `names` asks for of `STATISTICS` (all of them) and `RAW_LOGPS`, (B, T) each and 0
    at padding, once the model has run over the B rows.

    A hook on the body of the model, where the last hidden states are: a fused head is never called as a module, and
    gives no logits away. The model may see the rows in chunks, in order; `elements` is the number of logits of the
    largest chunk on any process, which decides how often the head is called.
    """
    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's
    head = model.get_output_embeddings()
    num_tokens = token_ids_BT.shape[1]
    found = [*STATISTICS] * (not set(names).isdisjoint(STATISTICS)) + [RAW_LOGPS] * (RAW_LOGPS in names)
    statistics = {name: torch.zeros(token_ids_BT.shape, device=token_ids_BT.device) for name in found}
    num_chunks, seen = -(-elements // LOGITS_BLOCK), 0

    def project(hidden_KH: Tensor) -> Tensor:
        logits: Tensor = head(hidden_KH.to(head.weight.dtype))
        return logits

    def look(module: Any, arguments: Any, output: Any) -> None:
        nonlocal seen
        hidden = output.last_hidden_state[:, -num_tokens - 1 : -1]
        rows = slice(seen, seen + len(hidden))
        seen += len(hidden)
        is_token = mask_BT[rows].bool()
        tokens = project, hidden[is_token], token_ids_BT[rows][is_token]
        values: list[Tensor] = []
        if STATISTICS[0] in statistics:
            values += logit_statistics(*tokens, temperature=temperature, num_chunks=num_chunks)
        if RAW_LOGPS in statistics:
            values.append(raw_logps(*tokens, num_chunks=num_chunks))
        for name, value in zip(statistics, values, strict=True):
            statistics[name][rows][is_token] = value

    handle = model.base_model.register_forward_hook(look)
    try:
        yield statistics
    finally:
        handle.remove()
