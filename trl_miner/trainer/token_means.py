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
        # of each metric, TRL's values and over how many tokens of this process they are
        self._found: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def add(self, logged: Mapping[str, Sequence[float]], inputs: dict[str, Any]) -> None:
        """Add what TRL has logged of a micro-batch."""
        num_tokens = _num_tokens(inputs)
        for name, values in logged.items():
            self._found[name] += [(value, num_tokens) for value in values if not math.isnan(value)]

    def over(self, trl_batches: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Return each metric over TRL's micro-batches, which include the rows left out. Every process must call it."""
        num_tokens = sum(map(_num_tokens, trl_batches))
        # F metrics of W processes: total, tokens, least, greatest
        own_F4 = []
        for name, found in self._found.items():
            values = [value for value, _ in found]
            counted = num_tokens if "clip_ratio" in name else sum(weight for _, weight in found)
            total = sum(value * weight for value, weight in found)
            own_F4.append((total, counted, min(values, default=math.inf), max(values, default=-math.inf)))
        device = trl_batches[0]["advantages"].device
        own_1F4 = torch.tensor([own_F4], dtype=accumulation_dtype(device), device=device)
        summaries_WF4 = current_world().gather(own_1F4).cpu()
        totals_F, counts_F, *_ = summaries_WF4.sum(dim=0).T
        extremes = {"_min": summaries_WF4[..., 2].amin(dim=0), "_max": summaries_WF4[..., 3].amax(dim=0)}
        means = {}
        for i, name in enumerate(self._found):
            value = float(extremes.get(name[-4:], totals_F / counts_F)[i])
            means[name] = value if math.isfinite(value) else math.nan
        return means


def _num_tokens(inputs: dict[str, Any]) -> float:
    return float(loss_mask(inputs).sum())
