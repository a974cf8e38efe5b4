"""Rows dealt over processes: a step lasts as long as its slowest process, and leaving rows out makes
them unlike.

All processes gather the lengths of the rows that count, make one plan of them, and exchange the rows
once, as 32-bit words. Where a row is computed does not change a gradient that is a sum over rows,
each with a weight that all processes share.

# N rows of all processes, n of each, K that a process sends or gets; W processes
"""

import functools
import logging
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..methods.distributed import World

logger = logging.getLogger(__name__)
Parts = list[list[int]]  # the rows of each micro-batch


class Limits(NamedTuple):
    """The most rows and padded tokens that a micro-batch may have; a longer row is one of its
    own."""

    max_rows: int | None  # None: there are as few micro-batches as the tokens allow
    max_tokens: int


def by_length(lengths_n2: np.ndarray) -> np.ndarray:
    """Sort the longest first: processes have long micro-batches at the same time, and a row too
    long shows at once."""
    return np.argsort(-lengths_n2.sum(axis=1), kind="stable")


class Cost(NamedTuple):
    """What a micro-batch costs: its padded tokens, and what attention adds to each."""

    hidden_size: int  # of the model; 0: attention is not counted

    def __call__(self, num_rows: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Return the cost, in tokens of a short row.

        A layer of width h has some 12 h^2 weights, and spends 24 h^2 operations on a token, and
        2 h more on each token before it, of which there are half as many as the row is long.
        """
        by_attention = length / (12 * self.hidden_size) if self.hidden_size else 0.0
        cost: np.ndarray = num_rows * length * (1.0 + by_attention)
        return cost


TOKENS = Cost(0)


def pack(
    lengths_n2: np.ndarray, limits: Limits, cost: Cost = TOKENS, most: float = np.inf
) -> list[int]:
    """Return where each of the fewest micro-batches ends that rows sorted by length need, within
    the limits, and none dearer than `most`."""
    num_rows, ends = len(lengths_n2), [0]
    while ends[-1] < num_rows:
        # As many as would fit if all were as long as the first, and at least that one.
        first = int(lengths_n2[ends[-1]].sum())
        count = max(1, int(min(limits.max_tokens, most) // first))
        end = ends[-1] + min(count, limits.max_rows or num_rows)
        longest = np.maximum.accumulate(lengths_n2[ends[-1] : end], axis=0).sum(axis=1)
        counts = np.arange(1, len(longest) + 1)
        fits = (counts * longest <= limits.max_tokens) & (cost(counts, longest) <= most)
        ends.append(ends[-1] + max(1, int(fits.sum())))
    return ends


def deal(
    lengths_n2: np.ndarray, num_processes: int, wanted: int, limits: Limits, cost: Cost
) -> list[Parts]:
    """Return the micro-batches of each process, so that all processes are done at about the same
    time.

    Rows of like length share a micro-batch. Those of equal cost run at the same time: with weights
    in shards, processes wait for each other in each of them.

    Args:
        lengths_n2: (n, 2) tokens of each row's prompt and completion.
        num_processes: Processes.
        wanted: Micro-batches of each; there are more if the limits need more.
        limits: Of a micro-batch.
        cost: Of a micro-batch.
    """
    order = by_length(lengths_n2)
    lengths_n2 = lengths_n2[order]
    longest = lengths_n2.sum(axis=1)
    ends = pack(lengths_n2, limits)
    number = num_processes * max(wanted, -(-(len(ends) - 1) // num_processes))
    lowest = float(cost(np.ones(1), longest).sum()) / number

    def costs(cut: list[int]) -> np.ndarray:
        found: np.ndarray = cost(np.diff(cut), np.maximum.reduceat(longest, cut[:-1]))
        return found

    cuts = [ends, *(pack(lengths_n2, limits, cost, lowest * 1.06**i) for i in range(32))]
    # Those that run at the same time last as long as the dearest of them.
    best = min(
        (cut for cut in cuts if len(cut) - 1 <= number),
        key=lambda cut: float(np.sort(costs(cut))[::-1][::num_processes].sum()),
    )
    dealt: list[Parts] = [[] for _ in range(num_processes)]
    for turn, part in enumerate(np.argsort(-costs(best), kind="stable").tolist()):
        lap, place = divmod(turn, num_processes)
        process = place if lap % 2 == 0 else num_processes - 1 - place
        dealt[process].append(order[best[part] : best[part + 1]].tolist())
    return dealt


# The exchange


class AllRows(NamedTuple):
    """What every process knows of the rows of all."""

    lengths_N2: np.ndarray  # tokens of prompt and completion
    is_used_N: np.ndarray
    longest: int  # tokens of a row with its padding, where that is longest
    are_alike: bool  # they have the same columns, which can be exchanged


def gather_rows(
    batch: dict[str, Any], lengths_n2: np.ndarray, is_used_n: np.ndarray, world: World
) -> AllRows:
    """Return what is known of the rows of all processes. Every process must call it."""
    kinds, longest = kinds_of_columns(batch), sum(token_sizes(batch).values())
    signature = 0
    if kinds is not None:
        columns = sorted((name, kind, str(batch[name].dtype)) for name, kind in kinds.items())
        signature = zlib.crc32(repr(columns).encode())
    own = [*np.c_[lengths_n2, is_used_n].tolist(), [signature, longest, 0]]
    device = batch["completion_ids"].device
    all_W = world.gather(torch.tensor([own], device=device)).cpu().numpy()
    rows_N3, (signatures_W, longest_W, _) = all_W[:, :-1].reshape(-1, 3), all_W[:, -1].T
    are_alike = bool(signature) and bool((signatures_W == signature).all())
    # said by the first that has such a column, or else by the first of all
    if world.size > 1 and not are_alike and world.rank == int((signatures_W == 0).argmax()):
        ids = {"completion_ids": batch["completion_ids"]}
        odd = [name for name in batch if kinds_of_columns({**ids, name: batch[name]}) is None]
        _warn_that_rows_stay(", ".join(odd or batch))
    return AllRows(rows_N3[:, :2], rows_N3[:, 2].astype(bool), int(longest_W.max()), are_alike)


@functools.cache  # once
def _warn_that_rows_stay(columns: str) -> None:
    logger.warning(
        f"Rows are not dealt over the processes because of {columns}: a column must have a number"
        " for each row or each token, and every process the same columns. Each process trains on"
        " its own rows, and a step lasts as long as the slowest."
    )


def token_sizes(batch: dict[str, Any]) -> dict[str, int]:
    """Return the tokens of a row of a batch, padding included."""
    return {part: batch[f"{part}_ids"].shape[1] for part in ("prompt", "completion")}


def deal_rows(
    batch: dict[str, Any], known: AllRows, *, wanted: int, limits: Limits, cost: Cost, world: World
) -> tuple[dict[str, Any], np.ndarray, Parts]:
    """Return the rows of this process after all have dealt theirs, their lengths, and its
    micro-batches of them. Every process must call it."""
    used = known.is_used_N.nonzero()[0]
    dealt = deal(known.lengths_N2[used], world.size, wanted, limits, cost)
    rows_W = [[int(used[row]) for part in parts for row in part] for parts in dealt]
    rows, here = exchange(batch, known.lengths_N2, rows_W, world)
    place = {row: number for number, row in enumerate(here)}
    parts = [[place[int(used[row])] for row in part] for part in dealt[world.rank]]
    parts += [[] for _ in range(max(map(len, dealt)) - len(parts))]
    return rows, known.lengths_N2[here], parts


def kinds_of_columns(batch: dict[str, Any]) -> dict[str, str] | None:
    """Return of each column of a batch whether a row has a value for each token of its "prompt", of
    its "completion", or one for all, "row"; None: something else is in it, which stays here."""
    num_rows, size = batch["completion_ids"].shape
    kinds = {}
    for name, value in batch.items():
        if not isinstance(value, Tensor) or value.dim() == 0:
            if isinstance(value, list | tuple | dict):
                return None
            continue
        if name in ("prompt_ids", "prompt_mask"):
            kinds[name] = "prompt"
        elif value.shape in ((num_rows,), (num_rows, 1)) and size != 1:
            kinds[name] = "row"
        elif value.shape == (num_rows, size):
            kinds[name] = "completion"
        else:
            return None
    return kinds


def exchange(
    batch: dict[str, Any], lengths_N2: np.ndarray, rows_W: Sequence[Sequence[int]], world: World
) -> tuple[dict[str, Any], list[int]]:
    """Return the rows that this process is to have, of those of all, and their numbers, in the order
    in which they come. Every process must call it.

    Beyond the lengths of a row there is 0.

    Args:
        batch: Of this process, with the columns that those of the others have.
        lengths_N2: (N, 2) tokens of prompt and completion of all rows.
        rows_W: The rows that each process is to have.
        world: The processes.
    """
    kinds = kinds_of_columns(batch)
    assert kinds is not None, "all batches are alike"
    num_rows, device = len(batch["completion_ids"]), batch["completion_ids"].device
    columns = {name: _as_words(batch[name]) for name in kinds}
    layout = [(kind, max(1, batch[name].element_size() // 4)) for name, kind in kinds.items()]

    def owned_by(rank: int, rows: Sequence[int]) -> list[int]:
        return [row for row in rows if row // num_rows == rank]

    sent = [owned_by(world.rank, rows) for rows in rows_W]
    got = [owned_by(rank, rows_W[world.rank]) for rank in range(world.size)]
    away, here = ([row for rows in some for row in rows] for some in (sent, got))
    places = torch.tensor(away, dtype=torch.long, device=device) - world.rank * num_rows
    words_K = torch.cat([words[places] for words in columns.values()], dim=1)
    is_word_K = _is_word(lengths_N2[away], token_sizes(batch), layout).to(device)
    counts = [
        [int(_num_words(lengths_N2[rows], layout).sum()) for rows in some] for some in (got, sent)
    ]
    words = words_K.new_empty(sum(counts[0]))
    dist.all_to_all_single(
        words, words_K[is_word_K], output_split_sizes=counts[0], input_split_sizes=counts[1]
    )
    num_prompt, num_completion = lengths_N2[here].max(axis=0, initial=1).tolist()
    size = {"prompt": num_prompt, "completion": num_completion}
    is_word_K = _is_word(lengths_N2[here], size, layout).to(device)
    words_K = words.new_zeros(is_word_K.shape)
    words_K[is_word_K] = words
    dealt, spans = dict(batch), [width * size.get(kind, 1) for kind, width in layout]
    for name, own in zip(kinds, words_K.split(spans, dim=1), strict=True):
        values = _from_words(own, batch[name].dtype)
        dealt[name] = values if batch[name].dim() > 1 else values.squeeze(1)
    return dealt, here


Layout = list[tuple[str, int]]  # of each column, what it has a value for, and the words of a value


def _num_words(lengths_K2: np.ndarray, layout: Layout) -> np.ndarray:
    """Return (K,) the words of each row."""
    words = {kind: sum(width for of, width in layout if of == kind) for kind, _ in layout}
    total: np.ndarray = lengths_K2 @ [words["prompt"], words["completion"]] + words.get("row", 0)
    return total


def _is_word(lengths_K2: np.ndarray, size: dict[str, int], layout: Layout) -> Tensor:
    """Return (K, words) bool: the words of each row that are within its lengths. Prompts end
    together, and completions begin together."""
    num_prompt, num_completion = torch.as_tensor(lengths_K2).T.unsqueeze(2)
    is_within = {
        "prompt": torch.arange(size["prompt"]) >= size["prompt"] - num_prompt,
        "completion": torch.arange(size["completion"]) < num_completion,
        "row": torch.ones(len(lengths_K2), 1, dtype=torch.bool),
    }
    return torch.cat(
        [is_within[kind].repeat_interleave(width, dim=1) for kind, width in layout], dim=1
    )


def _as_words(values: Tensor) -> Tensor:
    """Return (rows, words) int32, from which `_from_words` makes the same values."""
    values = values.view(len(values), -1)
    if values.element_size() < 4:
        values = values.float() if values.is_floating_point() else values.int()
    return values.contiguous().view(torch.int32)


def _from_words(words: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.itemsize >= 4:
        # A copy: a view of one row keeps its offset and stride, which longer values may not have.
        return words.clone(memory_format=torch.contiguous_format).view(dtype)
    return (words.view(torch.float32) if dtype.is_floating_point else words).to(dtype)
