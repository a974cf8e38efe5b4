"""The micro-batches of an optimizer step: rows of like length together, and no rows without effect.

TRL splits a generation batch at random into micro-batches and pads all of them to its longest rollout. A gradient that
is a sum over rows does not depend on which of them share a micro-batch. So a plan may group the rows of one optimizer
step by length, and leave out rows that add nothing to the sum.

# B rows of one of TRL's micro-batches, n rows of an optimizer step that are in its loss
# P padded prompt tokens, T padded completion tokens
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..distributed import World
from .padding import loss_mask, padded_length, row_lengths, shorten
from .row_layout import ROW_MEAN

# A micro-batch of short rows may have more rows than TRL's, by this factor, but never more tokens.
MOST_ROWS = 8

Row = tuple[int, int]  # one of TRL's micro-batches, and the row in it


@dataclass
class MicroBatchPlan:
    """How this process goes through the rows of TRL's micro-batches of one optimizer step."""

    trl_batches: Sequence[dict[str, Any]]  # TRL's micro-batches
    lengths: Sequence[np.ndarray]  # (B, 2) of each
    is_used: Sequence[np.ndarray]  # (B,) of each: the rows that are in the loss
    parts: list[list[Row]]  # the rows of each micro-batch of the plan
    loss_type: str  # TRL's; it decides what keeps the gradient
    num_tokens: int = 0  # tokens of the micro-batches built so far, padding included

    def of_micro_step(self, number: int) -> list[int]:
        """Return the micro-batches that run in TRL's micro-step `number`; the last has at least one."""
        num_parts, num_steps = len(self.parts), len(self.trl_batches)
        return list(range(number * num_parts // num_steps, (number + 1) * num_parts // num_steps))

    def build(self, number: int) -> tuple[dict[str, Any], float]:
        """Return micro-batch `number`, a batch for TRL's loss, and the weight of its loss."""
        rows = self.parts[number]
        inputs = self._join(rows) if rows else self._blank()
        self.num_tokens += len(inputs["prompt_ids"]) * padded_length(inputs)
        return inputs, len(rows) / len(self.is_used[0]) if self.loss_type in ROW_MEAN else 1.0

    def _join(self, rows: list[Row]) -> dict[str, Any]:
        longest = np.stack([self.lengths[batch][row] for batch, row in rows]).max(axis=0).tolist()
        short = {batch: shorten(self.trl_batches[batch], *longest) for batch, _ in rows}
        joined: dict[str, Any] = {}
        for name, value in self.trl_batches[rows[0][0]].items():
            if isinstance(value, Tensor) and value.dim() > 0:
                joined[name] = torch.stack([short[batch][name][row] for batch, row in rows])
            elif isinstance(value, list):
                joined[name] = [short[batch][name][row] for batch, row in rows]
            else:
                joined[name] = value
        return joined

    def _blank(self) -> dict[str, Any]:
        """Return one row of three tokens that nothing in the loss looks at."""
        first = {
            name: value[:1] if isinstance(value, list) or (isinstance(value, Tensor) and value.dim() > 0) else value
            for name, value in self.trl_batches[0].items()
        }
        short = shorten(first, 1, 2)
        return {
            **short,
            "prompt_mask": torch.ones_like(short["prompt_mask"]),
            "completion_mask": torch.zeros_like(short["completion_mask"]),
            "advantages": torch.zeros_like(short["advantages"]),
        }

    # How much goes through the model.

    def padded_tokens(self) -> int:
        """Return the tokens of TRL's micro-batches as they are."""
        return sum(len(batch["advantages"]) * padded_length(batch) for batch in self.trl_batches)

    def row_counts(self) -> tuple[int, int]:
        """Return how many rows are in the loss, and how many there are."""
        return sum(int(used.sum()) for used in self.is_used), sum(len(used) for used in self.is_used)


def plan_micro_batches(
    trl_batches: Sequence[dict[str, Any]],
    *,
    has_kl: bool,
    max_tokens: int | None,
    loss_type: str,
    least: int,
    world: World,
) -> MicroBatchPlan:
    """Group the rows of an optimizer step into micro-batches, equally many on every process. Every process must call.

    There are at least `least`, of at most `max_tokens` padded tokens each (None: no more than TRL's have). Rows
    without effect are left out, unless all are: TRL's metrics need some.
    """
    device = trl_batches[0]["advantages"].device
    lengths = [row_lengths(batch) for batch in trl_batches]
    is_used = [rows_with_effect(batch, has_kl=has_kl) for batch in trl_batches]
    if world.sum(torch.tensor(sum(used.sum() for used in is_used), device=device)) == 0:
        is_used = [np.ones_like(used) for used in is_used]
    rows = [(batch, int(row)) for batch, used in enumerate(is_used) for row in used.nonzero()[0]]
    lengths_n2 = np.array([lengths[batch][row] for batch, row in rows], dtype=np.int64).reshape(-1, 2)
    wanted = min(len(trl_batches), len(rows))
    if max_tokens is not None:
        wanted = fewest_micro_batches(lengths_n2, max_tokens)
    count = max(least, int(world.gather(torch.tensor([wanted], device=device)).max()))
    limits = micro_batch_limits(len(is_used[0]), padded_length(trl_batches[0]), max_tokens)
    parts = [[rows[i] for i in part] for part in partition(lengths_n2, count, **limits)]
    return MicroBatchPlan(trl_batches, lengths, is_used, parts, loss_type)


def rows_with_effect(batch: dict[str, Any], *, has_kl: bool) -> np.ndarray:
    """Return (B,) bool: the rows with a token that moves the policy, by its advantage or by the KL penalty."""
    mask_BT = loss_mask(batch).bool()
    if not has_kl:
        mask_BT = mask_BT & (batch["advantages"].view(len(mask_BT), -1) != 0)  # a subclass may have made them (B,)
    return mask_BT.any(dim=1).cpu().numpy()


# How to group rows of like length, with little padding.


def fewest_micro_batches(lengths_n2: np.ndarray, max_tokens: int) -> int:
    """Return how many micro-batches of at most `max_tokens` padded tokens rows sorted by length need."""
    count, longest, num_rows = 0, np.zeros(2, dtype=np.int64), 0
    for row in lengths_n2[_by_length(lengths_n2)]:
        together = np.maximum(longest, row)
        if count == 0 or (num_rows + 1) * together.sum() > max_tokens:
            count, longest, num_rows = count + 1, row, 1
        else:
            longest, num_rows = together, num_rows + 1
    return count


def micro_batch_limits(num_rows: int, padded_length: int, max_tokens: int | None) -> dict[str, int | None]:
    """Return the limits of a micro-batch for `partition`."""
    if max_tokens is not None:
        return {"max_rows": None, "max_tokens": max_tokens}
    return {"max_rows": MOST_ROWS * num_rows, "max_tokens": num_rows * padded_length}


def partition(
    lengths_n2: np.ndarray, count: int, *, max_rows: int | None = None, max_tokens: int | None = None
) -> list[list[int]]:
    """Split rows into micro-batches with the fewest padded tokens, among splits of the rows in order of length."""
    order = _by_length(lengths_n2)
    num_rows = len(order)
    ends, num_full = [0], min(count, num_rows)
    if num_full:
        most = min(max_rows or num_rows, num_rows - num_full + 1)
        if max_tokens is not None:
            most = min(most, max(1, max_tokens // int(lengths_n2.sum(axis=1).min())))
        tokens = _tokens_of_parts(lengths_n2[order], most)
        if max_tokens is not None:
            tokens[tokens > max_tokens] = np.inf
        # Of splits with equal padding take the most even one: this adds less than a token in all.
        tokens += 0.5 * (tokens / (num_rows * lengths_n2.max(axis=0).sum())) ** 2
        ends = _best_ends(tokens, num_full)
        if not ends:
            raise ValueError(
                f"{num_rows} rows do not fit into {num_full} micro-batches of at most {max_rows or 'any number of'} "
                f"rows and {max_tokens or 'any number of'} tokens. Use more micro-batches, or larger ones."
            )
    parts = [order[start:end].tolist() for start, end in itertools.pairwise(ends)]
    return parts + [[] for _ in range(count - len(parts))]


def _by_length(lengths_n2: np.ndarray) -> np.ndarray:
    """Sort the longest first: processes have long micro-batches at the same time, and a row too long shows at once."""
    return np.argsort(-lengths_n2.sum(axis=1), kind="stable")


def _tokens_of_parts(lengths_n2: np.ndarray, most: int) -> np.ndarray:
    """Return (n, most) the padded tokens of a part with the rows i to i + k; infinity beyond the last row."""
    num_rows = len(lengths_n2)
    last = np.arange(num_rows)[:, None] + np.arange(min(most, num_rows))
    longest = np.maximum.accumulate(lengths_n2[np.minimum(last, num_rows - 1)], axis=1)
    tokens = longest.sum(axis=2) * np.arange(1, last.shape[1] + 1).astype(float)
    tokens[last >= num_rows] = np.inf
    return tokens


def _best_ends(costs_nk: np.ndarray, count: int) -> list[int]:
    """Return where each of `count` parts of the rows ends that cost least in all, given what a part with the rows i to
    i + k costs, by dynamic programming from the last row; nothing where there is no such split."""
    num_rows, most = costs_nk.shape
    after = np.minimum(np.arange(num_rows)[:, None] + np.arange(1, most + 1), num_rows)  # the row after each part
    # fewest[i]: the cost of the rows from i on, in as many parts as have been considered
    fewest = np.full(num_rows + 1, np.inf)
    fewest[-1] = 0.0
    choices = []
    for _ in range(count):
        totals = costs_nk + fewest[after]
        choice = totals.argmin(axis=1)
        choices.append(choice)
        fewest = np.append(np.take_along_axis(totals, choice[:, None], axis=1)[:, 0], np.inf)
    if not np.isfinite(fewest[0]):
        return []
    ends = [0]
    for choice in reversed(choices):
        ends.append(ends[-1] + int(choice[ends[-1]]) + 1)
    return ends
