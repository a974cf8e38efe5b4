"""TRL's metrics of the micro-batches of a plan, as one mean over the tokens of all of them."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..distributed import accumulation_dtype, current_world
from .padding import loss_mask


class TokenMeans:
    """What TRL logs of each micro-batch, averaged by its tokens; `*_min` and `*_max` are the least and the greatest.

    A clip ratio counts the tokens of rows left out as well: without an advantage they are never clipped.
    """

    def __init__(self) -> None:
        # of each metric, TRL's values, which are those of all processes, and their weights on this one
        self._found: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def add(self, logged: Mapping[str, Sequence[float]], inputs: dict[str, Any]) -> None:
        """Add what TRL has logged of a micro-batch."""
        weight = _num_tokens(inputs)
        for name, values in logged.items():
            self._found[name] += [(value, weight) for value in values if not math.isnan(value)]

    def over(self, trl_batches: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Return each metric over TRL's micro-batches, which include the rows left out. Every process must call it."""
        num_tokens, sums = sum(map(_num_tokens, trl_batches)), []
        for name, found in self._found.items():
            counted = num_tokens if "clip_ratio" in name else sum(weight for _, weight in found)
            sums.append((sum(value * weight for value, weight in found), counted))
        device = trl_batches[0]["advantages"].device
        totals = current_world().sum(torch.tensor(sums, dtype=accumulation_dtype(device), device=device)).tolist()
        means = {}
        for (name, found), (total, count) in zip(self._found.items(), totals, strict=True):
            values = [value for value, _ in found]
            if values and name.endswith(("_min", "_max")):
                means[name] = min(values) if name.endswith("_min") else max(values)
            else:
                means[name] = total / count if values and count else math.nan
        return means


def _num_tokens(inputs: dict[str, Any]) -> float:
    return float(loss_mask(inputs).sum())
