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

TOKENS_PER_PIECE = 1 << 16


@dataclass(frozen=True)
class Words:
    """What the tokens of a page are.

    Attributes:
        texts: Distinct texts.
        ids: (W,) token id of each word.
        text_of: (W,) index of its text.
        words: (T,) word of each token.
    """

    texts: list[str]
    ids: np.ndarray
    text_of: np.ndarray
    words: np.ndarray


def find_words(table: Any) -> Words:
    """The pairs of token id and text; an id may have several texts: "" where a later token completes a character."""
    import pyarrow.compute as pc

    texts = pc.fill_null(pc.list_flatten(table["tokens"].combine_chunks()), "").dictionary_encode()
    ids = pc.fill_null(pc.list_flatten(table["token_ids"].combine_chunks()), 0).to_numpy().astype(np.int64)
    pairs = ids << 32 | texts.indices.to_numpy().astype(np.int64)
    found, words = np.unique(pairs, return_inverse=True)
    return Words(
        texts=texts.dictionary.to_pylist(),
        ids=found >> 32,
        text_of=found & 0xFFFF_FFFF,
        words=words.astype(np.uint32).reshape(-1),
    )


def plan_pieces(starts: np.ndarray, sizes: np.ndarray, counts: np.ndarray) -> list[tuple[int, int]]:
    """Whole prompts in pieces of about TOKENS_PER_PIECE.

    Args:
        starts: (P,) first row of each prompt.
        sizes: (P,) its rows.
        counts: (N,) tokens of each row.

    Returns:
        First row and end of each piece.
    """
    ends = np.concatenate([[0], np.cumsum(counts)])
    pieces, first = [], 0
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        if ends[start + size] - ends[first] >= TOKENS_PER_PIECE or start + size == len(counts):
            pieces.append((first, start + size))
            first = start + size
    return pieces


def pack_pieces(table: Any, words: Words, pieces: list[tuple[int, int]]) -> Iterator[bytes]:
    """The pieces as base64, one after another."""
    counts = token_counts(table)
    ends = np.concatenate([[0], np.cumsum(counts)])
    for first, end in pieces:
        rows = table.slice(first, end - first)
        logps, weights, before, after = (
            token_numbers(rows, name) for name in ("old_logps", "weights", "advantages_before", "advantages")
        )
        of_piece = counts[first:end]
        factors_after, after_bits = _as_products(weights, after, of_piece)
        factors_before, before_bits = _as_products(weights, before, of_piece)
        columns = (words.words[ends[first] : ends[end]], logps, weights, after_bits, before_bits)
        yield pack(b"".join([*map(_planes, columns), factors_after.tobytes(), factors_before.tobytes()]))


def pack(content: bytes) -> bytes:
    """Deflated, in base64: characters that mean nothing to HTML."""
    return base64.b64encode(zlib.compress(content, 6))


def pack_json(content: Any) -> bytes:
    """As `pack`. NaN and infinities become the texts that JavaScript's Number() takes."""
    return pack(json.dumps(_for_json(content), allow_nan=False, ensure_ascii=False).encode())


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


def _planes(numbers: np.ndarray) -> bytes:
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, 4).T.tobytes()


def _as_products(weights: np.ndarray, numbers: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each rollout's numbers as one factor times its weights.

    Returns:
        (R,) float64 factors; (T,) int32, what the bits of the products lack to those of the numbers.
    """
    bases = np.where(np.isfinite(weights), weights, np.float32(1)).astype(np.float64)
    ends = np.cumsum(counts)
    factors = np.zeros(len(counts))
    for row, (end, count) in enumerate(zip(ends.tolist(), counts.tolist(), strict=True)):
        one = slice(end - count, end)
        factors[row] = _factor(bases[one], numbers[one])
    with np.errstate(over="ignore"):
        products = (bases * np.repeat(factors, counts)).astype(np.float32)
    return factors, (numbers.view(np.int32).astype(np.int64) - products.view(np.int32)).astype(np.int32)


def _factor(bases: np.ndarray, numbers: np.ndarray) -> float:
    """The float32 whose products with the bases are the numbers, if there is one, else one that comes near."""
    is_known = np.isfinite(numbers) & (bases != 0) & (numbers != 0)
    if not is_known.any():
        return 0.0
    bases, numbers = bases[is_known], numbers[is_known]
    # the largest products leave the fewest candidates; more than one rounding may give the same
    at = np.argsort(-np.abs(numbers.astype(np.float64)))[:64]
    middle = np.float32(np.median(numbers[at] / bases[at]))
    if not np.isfinite(middle):
        return 0.0
    steps = np.arange(-4, 5, dtype=np.int32)
    candidates = (middle.view(np.int32) + steps).view(np.float32).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        hits = ((bases[:, None] * candidates).astype(np.float32) == numbers[:, None]).sum(axis=0)
    best = float(candidates[hits.argmax()])
    return best if np.isfinite(best) else 0.0
