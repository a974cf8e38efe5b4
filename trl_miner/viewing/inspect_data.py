"""The data of the page of `trl-miner inspect`: deflated JSON in base64, in pieces that a browser reads when needed.

A number is written with the fewest digits that give its float32 back. NaN and infinities, which JSON lacks, are the
texts that JavaScript's Number() takes; null is a number that is not known.
"""

import base64
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..runs.token_credit import KINDS, Credit, groups_of, token_counts
from .credit import credit_sums, paid_tokens, prompts_of, token_texts

TOKENS_PER_PIECE = 1 << 16
_ROW_COLUMNS = ("reward", "verifier_reward", "grpo_advantage", "advantage", "nll", "rollout", "length")
_TOKEN_COLUMNS = ("old_logps", "weights", "advantages_before", "advantages")
_TEXT_OR_ODD = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b')


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


def plan_pieces(table: Any) -> list[tuple[int, int]]:
    """Return first row and end of pieces of about TOKENS_PER_PIECE, of whole prompts."""
    starts, sizes = groups_of(table)
    ends = np.concatenate([[0], np.cumsum(token_counts(table))])
    pieces, first = [], 0
    for end in (starts + sizes).tolist():
        if ends[end] - ends[first] >= TOKENS_PER_PIECE or end == table.num_rows:
            pieces.append((first, end))
            first = end
    return pieces


def pack_pieces(table: Any, words: Words, pieces: list[tuple[int, int]]) -> Iterator[str]:
    """Yield the pieces: of each rollout an object of lists with an entry for each token; a list or number is null."""
    ends = np.concatenate([[0], np.cumsum(token_counts(table))])
    for first, end in pieces:
        rows = table.slice(first, end - first)
        columns = {"words": [own.tolist() for own in np.split(words.words[: ends[end]], ends[first:end])[1:]]}
        columns |= {name: _shortest(rows[name].combine_chunks()).to_pylist() for name in _TOKEN_COLUMNS}
        yield pack_json([dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)])


def _shortest(lists: Any) -> Any:
    """Return lists of float64 whose shortest decimals are those of the float32 that they were."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    values = lists.flatten().cast(pa.string()).cast(pa.float64())
    return pa.ListArray.from_arrays(offsets, values, mask=lists.is_null())


def pack_json(content: Any) -> str:
    """Return deflated JSON in base64, in which numbers that JSON lacks are texts."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=np.ndarray.tolist)
    text = _TEXT_OR_ODD.sub(lambda found: found[0] if found[0][0] == '"' else f'"{found[0]}"', text)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 6)).decode()


def head(credit: Credit, shown: Credit, pieces: list[tuple[int, int]]) -> dict[str, Any]:
    """Return what the page needs at once: facts of the run, batches, prompts, and the table of paid tokens."""
    prompts = prompts_of(shown.table)
    texts = shown.table["prompt"].take(prompts["first"].to_numpy()).to_pylist()
    groups = prompts.assign(prompt=[text or "" for text in texts]).to_dict("records")
    largest = prompts.groupby(["step", "kind"], sort=False)["largest"].max()
    batches = credit_sums(credit)
    for sums in batches:
        meta = credit.metas[sums["step"]]
        sums["meta"] = {key: value for key, value in meta.items() if isinstance(value, str | int | float | None)}
    return {
        "name": credit.name,
        "methods": credit.methods,
        "files": credit.files,
        "notes": shown.notes,
        "rollouts": shown.table.num_rows,
        "recorded": credit.table.num_rows,
        "batches": batches,
        "groups": [one | {"reward": None if np.isnan(one["reward"]) else one["reward"]} for one in groups],
        "largest": {f"{step} {kind}": value for (step, kind), value in largest.items()},
        "rows": {name: shown.table[name].to_pylist() for name in _ROW_COLUMNS},
        "pieces": pieces,
        "completions": _other_completions(shown.table),
        "paid": {kind: paid_tokens(credit, kind)[["text", "count", "credit"]].to_dict("list") for kind in KINDS},
    }


def _other_completions(table: Any) -> dict[int, str]:
    """Return by row the completions whose text is not part of their joined tokens."""
    import pyarrow.compute as pc

    joined = pc.binary_join(table["tokens"].combine_chunks(), "").to_pylist()
    texts = zip(joined, table["completion"].to_pylist(), strict=True)
    return {row: text for row, (tokens, text) in enumerate(texts) if text and text.strip() not in (tokens or "")}
