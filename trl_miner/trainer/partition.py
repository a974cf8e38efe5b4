"""Rows of like length together: how to split rows into micro-batches with little padding.

# n rows, of prompt and completion tokens each
"""

import numpy as np

# A micro-batch of short rows may have more rows than TRL's, by this factor, but never more tokens.
MOST_ROWS = 8


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
    """Return the limits of a micro-batch for `partition`.

    Args:
        num_rows: Rows of one of TRL's micro-batches.
        padded_length: Tokens of each of them, padding included.
        max_tokens: The token budget; None: no more tokens than TRL's micro-batches have.
    """
    if max_tokens is not None:
        return {"max_rows": None, "max_tokens": max_tokens}
    return {"max_rows": MOST_ROWS * num_rows, "max_tokens": num_rows * padded_length}


def partition(
    lengths_n2: np.ndarray, count: int, *, max_rows: int | None = None, max_tokens: int | None = None
) -> list[list[int]]:
    """Split rows into micro-batches with the fewest padded tokens, among splits of the rows in order of length.

    Args:
        lengths_n2: (n, 2) tokens of prompt and completion.
        count: Micro-batches. The last ones are empty when there are fewer rows.
        max_rows: Rows of a micro-batch at most.
        max_tokens: Padded tokens of a micro-batch at most.

    Returns:
        The row numbers of each micro-batch, longest first.

    Raises:
        ValueError: The rows do not fit.
    """
    order = _by_length(lengths_n2)
    num_rows = len(order)
    num_full = min(count, num_rows)
    ends = [0] if num_full == 0 else _best_ends(lengths_n2[order], num_full, max_rows, max_tokens)
    parts = [order[start:end].tolist() for start, end in zip(ends, ends[1:], strict=False)]
    return parts + [[] for _ in range(count - len(parts))]


def _by_length(lengths_n2: np.ndarray) -> np.ndarray:
    """Sort the longest first: then processes have long micro-batches at the same time, and what does not fit shows at
    once."""
    return np.argsort(-lengths_n2.sum(axis=1), kind="stable")


def _best_ends(lengths_n2: np.ndarray, count: int, max_rows: int | None, max_tokens: int | None) -> list[int]:
    """Return where each of `count` parts of the sorted rows ends, by dynamic programming from the last row."""
    num_rows = len(lengths_n2)
    most = min(max_rows or num_rows, num_rows - count + 1)
    if max_tokens is not None:
        most = min(most, max(1, max_tokens // int(lengths_n2.sum(axis=1).min())))
    # tokens[i, k]: of a part with the rows i to i + k
    last = np.arange(num_rows)[:, None] + np.arange(most)
    longest = np.maximum.accumulate(lengths_n2[np.minimum(last, num_rows - 1)], axis=1)
    tokens = longest.sum(axis=2) * np.arange(1, most + 1).astype(float)
    tokens[last >= num_rows] = np.inf
    if max_tokens is not None:
        tokens[tokens > max_tokens] = np.inf
    # Of splits with equal padding take the most even one: this adds less than a token in all.
    tokens += 0.5 * (tokens / (num_rows * lengths_n2.max(axis=0).sum())) ** 2
    after = np.minimum(last + 1, num_rows)
    # fewest[i]: tokens of the rows from i on, in as many parts as have been considered
    fewest = np.full(num_rows + 1, np.inf)
    fewest[num_rows] = 0.0
    choices = []
    for _ in range(count):
        totals = tokens + fewest[after]
        choice = totals.argmin(axis=1)
        choices.append(choice)
        fewest = np.append(np.take_along_axis(totals, choice[:, None], axis=1)[:, 0], np.inf)
    if not np.isfinite(fewest[0]):
        raise ValueError(
            f"{num_rows} rows do not fit into {count} micro-batches of at most {max_rows or 'any number of'} rows and "
            f"{max_tokens or 'any number of'} tokens. Use more micro-batches, or larger ones."
        )
    ends = [0]
    for choice in reversed(choices):
        ends.append(ends[-1] + int(choice[ends[-1]]) + 1)
    return ends
