"""The micro-batches of an optimizer step: rows of like length together, and no rows without effect.

TRL splits a generation batch at random into micro-batches and pads all of them to its longest
rollout. A gradient that is a sum over rows does not depend on which of them share a micro-batch. So
a plan may group the rows of one optimizer step by length, and leave out rows that add nothing to
the sum.

# B rows of a batch, n of TRL's micro-batches of an optimizer step, K of some of them; T padded
completion tokens
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..methods.distributed import World
from .dealing import (
    Cost,
    Limits,
    Parts,
    by_length,
    deal_rows,
    gather_rows,
    pack,
    token_sizes,
)
from .trl_names import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

# TRL's losses whose gradient is a sum over rows, whatever micro-batch they are in:
# averaged by tokens of the whole generation batch: nothing to do
SUMMED = {"cispo", "dapo", "vespo"}
# averaged by rows: weight a micro-batch by its rows
ROW_MEAN = {"dr_grpo", "grpo", "luspo", "sapo"}
# A micro-batch of short rows may have more rows than TRL's, by this factor, but never more tokens.
MOST_ROWS = 8
# How many tokens of padding another micro-batch must save on a CPU: what it takes by itself, with a
# model of 0.6 M parameters. (7 ms, of 0.03 ms a token; a larger model's tokens take longer.)
TOKENS_OF_ANOTHER = 256


@dataclass
class MicroBatchPlan:
    """How this process goes through the rows of one optimizer step: its own, or those that were
    dealt to it."""

    batch: dict[str, Any]  # the n rows of TRL's micro-batches, one after the other
    is_used_n: np.ndarray  # those of them that are in the loss, here or elsewhere
    rows: dict[str, Any]  # the K rows that go through the model here: `batch`, or dealt ones
    lengths_K2: np.ndarray
    parts: Parts  # the places in `rows` of each micro-batch of the plan
    num_steps: int  # TRL's micro-batches
    loss_type: str  # TRL's; it decides what keeps the gradient
    num_tokens: int = 0  # tokens of the micro-batches built so far, padding included

    def of_micro_step(self, number: int) -> list[int]:
        """Return the micro-batches that run in TRL's micro-step `number`; the last has at least
        one."""
        num_parts = len(self.parts)
        return list(
            range(number * num_parts // self.num_steps, (number + 1) * num_parts // self.num_steps)
        )

    def build(self, number: int) -> tuple[dict[str, Any], float]:
        """Return micro-batch `number`, a batch for TRL's loss, and the weight of its loss.

        One without rows is a row of three tokens that nothing in the loss looks at.
        """
        rows = self.parts[number]
        longest = self.lengths_K2[rows].max(axis=0).tolist() if rows else (1, 2)
        places = torch.tensor(rows or [0], device=self.batch["completion_ids"].device)
        inputs = select_rows(shorten(self.rows if rows else self.batch, *longest), places)
        if not rows:
            inputs["prompt_mask"] = torch.ones_like(inputs["prompt_mask"])
            inputs["completion_mask"] = torch.zeros_like(inputs["completion_mask"])
            inputs["advantages"] = torch.zeros_like(inputs["advantages"])
        self.num_tokens += padded_tokens(inputs)
        rows_of_trls = len(self.is_used_n) / self.num_steps
        return inputs, len(rows) / rows_of_trls if self.loss_type in ROW_MEAN else 1.0


def plan_micro_batches(
    trl_batches: Sequence[dict[str, Any]],
    *,
    has_kl: bool,
    max_tokens: int | None,
    loss_type: str,
    least: int,
    world: World,
    hidden_size: int = 0,
) -> MicroBatchPlan:
    """Group the rows of an optimizer step into micro-batches, equally many on every process. Every
    process must call.

    There are at least `least`, within `micro_batch_limits`. Rows without effect are left out,
    unless all are: TRL's metrics need some. Several processes deal the others among them, unless
    their batches have something else than a value for each row or token.
    """
    batch = {
        name: (
            torch.cat([trl_batch[name] for trl_batch in trl_batches])
            if isinstance(value, Tensor) and value.dim() > 0
            else value
        )
        for name, value in trl_batches[0].items()
    }
    device, num_steps = batch["completion_ids"].device, len(trl_batches)
    lengths_n2, is_used_n = row_lengths(batch), rows_with_effect(batch, has_kl=has_kl)
    known = gather_rows(batch, lengths_n2, is_used_n, world)
    if not known.is_used_N.any():
        known.is_used_N[:], is_used_n = True, np.ones_like(is_used_n)
    limits = micro_batch_limits(len(is_used_n) // num_steps, known.longest, max_tokens, device)
    if known.are_alike and world.size > 1:
        wanted = least if limits.max_rows is None else max(least, num_steps)
        rows, lengths_K2, parts = deal_rows(
            batch, known, wanted=wanted, limits=limits, cost=Cost(hidden_size), world=world
        )
    else:
        rows, lengths_K2, used = batch, lengths_n2, is_used_n.nonzero()[0]
        wanted = num_parts(lengths_n2[used], limits, min(num_steps, len(used)))
        wanted = int(world.gather(torch.tensor([wanted], device=device)).max())
        cut = partition(lengths_n2[used], max(least, wanted), *limits)
        parts = [used[part].tolist() for part in cut]
    parts += [[] for _ in range(least - len(parts))]
    return MicroBatchPlan(batch, is_used_n, rows, lengths_K2, parts, num_steps, loss_type)


def rows_with_effect(batch: dict[str, Any], *, has_kl: bool) -> np.ndarray:
    """Return (B,) bool: the rows with a token that moves the policy, by its advantage or by the KL
    penalty."""
    mask_BT = loss_mask(batch).bool()
    if not has_kl:
        # a subclass may have made them (B,)
        mask_BT = mask_BT & (batch["advantages"].view(len(mask_BT), -1) != 0)
    return mask_BT.any(dim=1).cpu().numpy()


def select_rows(batch: dict[str, Any], rows_K: Tensor) -> dict[str, Any]:
    """Return the rows of a batch as TRL returns it; images are stored apart from rows, so TRL's own
    helpers split them."""
    selected: dict[str, Any] = {}
    for name, value in split_pixel_values_by_grid(batch).items():
        if isinstance(value, list):
            selected[name] = [value[row] for row in rows_K.tolist()]
        elif isinstance(value, Tensor) and value.dim() > 0:
            selected[name] = value[rows_K]
        else:
            selected[name] = value
    return unsplit_pixel_values_by_grid(selected)


# How to group rows of like length, with little padding.


def micro_batch_limits(
    num_rows: int, padded_length: int, max_tokens: int | None, device: torch.device
) -> Limits:
    """Return the limits where TRL's micro-batches have `num_rows` of `padded_length`; `max_tokens`
    as it was set.

    On a GPU each micro-batch takes its time, however short its rows are, and few large ones are
    faster: as many tokens as TRL's micro-batches hold. On a CPU tokens count alone, and more
    micro-batches need less padding.
    """
    if max_tokens is None and device.type == "cpu":
        return Limits(MOST_ROWS * num_rows, num_rows * padded_length)
    return Limits(None, max_tokens or num_rows * padded_length)


def num_parts(lengths_n2: np.ndarray, limits: Limits, trls: int) -> int:
    """Return how many micro-batches to cut rows into, where TRL has `trls`: on a GPU as few as the
    limits allow, on a CPU as many as save more padding than they take, and no fewer than TRL."""
    lengths_n2 = lengths_n2[by_length(lengths_n2)]
    if limits.max_rows is None:
        return len(pack(lengths_n2, limits)) - 1
    num_rows = len(lengths_n2)
    if num_rows == 0:
        return trls
    tokens = _tokens_of_parts(lengths_n2, _most_rows(lengths_n2, *limits)) + TOKENS_OF_ANOTHER
    cheapest, counts = (
        np.zeros(num_rows + 1),
        np.zeros(num_rows + 1, dtype=int),
    )  # of rows from i on
    for row in reversed(range(num_rows)):
        totals = tokens[row, : num_rows - row] + cheapest[row + 1 : row + 1 + tokens.shape[1]]
        end = int(totals.argmin())
        cheapest[row], counts[row] = totals[end], 1 + counts[row + 1 + end]
    return max(trls, int(counts[0]))


def _most_rows(lengths_n2: np.ndarray, max_rows: int | None, max_tokens: int | None) -> int:
    """Return the most rows that a micro-batch can have, if they are the shortest."""
    most = min(max_rows or len(lengths_n2), len(lengths_n2))
    if max_tokens is None:
        return most
    return min(most, max(1, max_tokens // int(lengths_n2.sum(axis=1).min())))


def partition(
    lengths_n2: np.ndarray, count: int, max_rows: int | None = None, max_tokens: int | None = None
) -> list[list[int]]:
    """Split rows into micro-batches with the fewest padded tokens, among splits of the rows in
    order of length.

    A row of more than `max_tokens` is a micro-batch of its own.
    """
    order = by_length(lengths_n2)
    num_rows = len(order)
    ends, num_full = [0], min(count, num_rows)
    if num_full:
        most = min(_most_rows(lengths_n2, max_rows, max_tokens), num_rows - num_full + 1)
        tokens = _tokens_of_parts(lengths_n2[order], most)
        if max_tokens is not None:
            tokens[:, 1:][tokens[:, 1:] > max_tokens] = np.inf
        # Of splits with equal padding take the most even one: this adds less than a token in all.
        tokens += 0.5 * (tokens / (num_rows * lengths_n2.max(axis=0).sum())) ** 2
        ends = _best_ends(tokens, num_full)
        if not ends:
            raise ValueError(
                f"{num_rows} rows do not fit into {num_full} micro-batches of at most"
                f" {max_rows or 'any number of'} rows and {max_tokens or 'any number of'} tokens."
                " Use more micro-batches, or larger ones."
            )
    parts = [order[start:end].tolist() for start, end in itertools.pairwise(ends)]
    return parts + [[] for _ in range(count - len(parts))]


def _tokens_of_parts(lengths_n2: np.ndarray, most: int) -> np.ndarray:
    """Return (n, most) the padded tokens of a part with the rows i to i + k; infinity beyond the
    last row."""
    num_rows = len(lengths_n2)
    last = np.arange(num_rows)[:, None] + np.arange(min(most, num_rows))
    longest = np.maximum.accumulate(lengths_n2[np.minimum(last, num_rows - 1)], axis=1)
    tokens = longest.sum(axis=2) * np.arange(1, last.shape[1] + 1).astype(float)
    tokens[last >= num_rows] = np.inf
    return tokens


def _best_ends(costs_nk: np.ndarray, count: int) -> list[int]:
    """Return where each of `count` parts of the rows ends that cost least in all, given what a part
    with the rows i to i + k costs, by dynamic programming from the last row; nothing where there is
    no such split."""
    num_rows, most = costs_nk.shape
    # the row after each part
    after = np.minimum(np.arange(num_rows)[:, None] + np.arange(1, most + 1), num_rows)
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


# Padding: how much of it each row needs, and a batch without the rest.


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
    """Return a batch with the last `num_prompt` prompt tokens and the first `num_completion`
    completion tokens."""
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
    return sum(token_sizes(batch).values())


def padded_tokens(batch: dict[str, Any]) -> int:
    """Return the tokens of all rows, padding included."""
    return len(batch["prompt_ids"]) * padded_length(batch)


def loss_mask(batch: dict[str, Any]) -> Tensor:
    """Return (B, T), non-zero at the tokens that count: those of the completion that are not a
    tool's."""
    mask_BT = batch["completion_mask"]
    return mask_BT * batch["tool_mask"] if "tool_mask" in batch else mask_BT
