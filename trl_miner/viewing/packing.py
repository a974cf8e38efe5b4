"""Token records as text in a page: exact, small, and in pieces that a browser unpacks when it needs them.

# A piece holds the R rollouts of some prompts, T tokens together.

A piece is deflated, in base64, and holds one after another, little-endian:
    words    T uint32   index into the page's list of (token id, text)
    logps    T float32  NULL_BITS where not known
    weights  T float32
    after    T int32    bits of the advantage minus the bits of float32(weight * factor)
    before   T int32    the same before calibration
    factors  2R float64 those of `after`, then those of `before`
The arrays of T lie byte plane by byte plane: the first bytes of all numbers, the second ones, ... A weight that is not
finite counts as 1 there. MINER's advantages are such products, and those of GRPO constant, so that the differences are
zeros and take no room; whatever else a method does is exact all the same.
"""

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..runs.token_credit import token_counts, token_numbers
from .credit import token_texts

TOKENS_PER_PIECE = 1 << 16


@dataclass(frozen=True)
class Words:
    """The tokens of a page: distinct texts; of each word (W,) its token id and the index of its text; (T,) words."""

    texts: list[str]
    ids: np.ndarray
    text_of: np.ndarray
    words: np.ndarray


def find_words(table: Any) -> Words:
    """Return the pairs of token id and text, which is "" where a later token completes a character."""
    import pyarrow.compute as pc

    texts = token_texts(table)
    ids = pc.fill_null(pc.list_flatten(table["token_ids"].combine_chunks()), 0).to_numpy().astype(np.int64)
    pairs, words = np.unique(ids << 32 | texts.indices.to_numpy().astype(np.int64), return_inverse=True)
    return Words(texts.dictionary.to_pylist(), pairs >> 32, pairs & 0xFFFF_FFFF, words.astype(np.uint32).reshape(-1))


def plan_pieces(starts: np.ndarray, sizes: np.ndarray, counts: np.ndarray) -> list[tuple[int, int]]:
    """Return first row and end of pieces of about TOKENS_PER_PIECE, from (P,) prompts' rows and (N,) rows' tokens."""
    ends = np.concatenate([[0], np.cumsum(counts)])
    pieces, first = [], 0
    for end in (starts + sizes).tolist():
        if ends[end] - ends[first] >= TOKENS_PER_PIECE or end == len(counts):
            pieces.append((first, end))
            first = end
    return pieces


def pack_pieces(table: Any, words: Words, pieces: list[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the pieces as base64."""
    counts = token_counts(table)
    ends = np.concatenate([[0], np.cumsum(counts)])
    for first, end in pieces:
        rows = table.slice(first, end - first)
        logps, weights, before, after = (
            token_numbers(rows, name) for name in ("old_logps", "weights", "advantages_before", "advantages")
        )
        factors_after, after_bits = _as_products(weights, after, counts[first:end])
        factors_before, before_bits = _as_products(weights, before, counts[first:end])
        columns = (words.words[ends[first] : ends[end]], logps, weights, after_bits, before_bits)
        yield pack(planes(*columns) + factors_after.tobytes() + factors_before.tobytes())


def pack(content: bytes) -> bytes:
    """Return the content deflated, in base64: characters that mean nothing to HTML."""
    return base64.b64encode(zlib.compress(content, 6))


def pack_json(content: Any) -> bytes:
    """Return JSON as `pack` does. NaN and infinities become the texts that JavaScript's Number() takes."""
    return pack(json.dumps(_for_json(content), allow_nan=False, ensure_ascii=False).encode())


def planes(*columns: np.ndarray) -> bytes:
    """Return columns of 4-byte numbers one after another, each byte plane by byte plane."""
    return b"".join(np.ascontiguousarray(column).view(np.uint8).reshape(-1, 4).T.tobytes() for column in columns)


def _for_json(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(key): _for_json(value) for key, value in content.items()}
    if isinstance(content, np.ndarray):
        content = content.tolist()
    if isinstance(content, list | tuple):
        return [_for_json(value) for value in content]
    if isinstance(content, float) and not np.isfinite(content):
        return "NaN" if np.isnan(content) else "Infinity" if content > 0 else "-Infinity"
    return content


def _as_products(weights: np.ndarray, numbers: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (R,) factors of the rollouts' weights, and (T,) how far the bits of the products miss the numbers."""
    bases = np.where(np.isfinite(weights), weights, np.float32(1)).astype(np.float64)
    is_known = np.isfinite(numbers) & (bases != 0) & (numbers != 0)
    factors, end = np.zeros(len(counts)), 0
    with np.errstate(over="ignore"):
        for row, count in enumerate(counts.tolist()):
            at = np.flatnonzero(is_known[end : end + count]) + end
            end += count
            # each quotient is off by a rounding, their median hardly ever; any factor will do, the best leaves zeros
            factor = np.float32(np.median(numbers[at] / bases[at])) if len(at) else np.float32(0)
            factors[row] = factor if np.isfinite(factor) else 0.0
        products = (bases * np.repeat(factors, counts)).astype(np.float32)
    return factors, (numbers.view(np.int32).astype(np.int64) - products.view(np.int32)).astype(np.int32)
