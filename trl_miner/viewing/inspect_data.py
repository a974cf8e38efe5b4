"""The data of the page of `trl-miner inspect`: deflated JSON in base64, in pieces that a browser reads when needed.

A number is written with the fewest digits that give its float32 back. NaN and infinities, which JSON lacks, are the
texts that JavaScript's Number() takes; null is a number that is not known.
"""

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runs.token_credit import KINDS, Credit, groups_of, token_counts, token_numbers
from .credit import credit_sums, paid_by_text, prompts_of, token_texts

if TYPE_CHECKING:
    from pandas import DataFrame

TOKENS_PER_PIECE = 1 << 16
_ROW_COLUMNS = ("reward", "verifier_reward", "grpo_advantage", "advantage", "nll", "rollout", "length")
_TOKEN_COLUMNS = ("old_logps", "weights", "advantages_before", "advantages")


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
    """Yield the pieces: of each rollout an object of lists with an entry for each token; no list is null.

    Where all advantages of a rollout are its weights times one factor, as MINER's are, the factor stands for the list.
    """
    import pyarrow as pa

    counts = token_counts(table)
    ends = np.concatenate([[0], np.cumsum(counts)])
    for first, end in pieces:
        rows = table.slice(first, end - first)
        offsets = pa.array(ends[first : end + 1] - ends[first], pa.int32())
        words_of = pa.array(words.words[ends[first] : ends[end]])
        columns = {"words": _as_json(pa.ListArray.from_arrays(offsets, words_of))}
        numbers = {name: np.split(token_numbers(rows, name), offsets.to_numpy()[1:-1]) for name in _TOKEN_COLUMNS}
        for name in _TOKEN_COLUMNS:
            pairs = zip(numbers["weights"], numbers[name], strict=True)
            factors = [_factor(*pair) if name.startswith("advantages") else None for pair in pairs]
            has_none = pa.array([factor is None for factor in factors], pa.bool_())
            lists = iter(_as_json(rows[name].combine_chunks().filter(has_none)))
            columns[name] = [next(lists) if factor is None else repr(factor) for factor in factors]
        objects = (
            ",".join(f'"{name}":{one}' for name, one in zip(columns, row, strict=True))
            for row in zip(*columns.values(), strict=True)
        )
        yield _pack(f"[{','.join(f'{{{one}}}' for one in objects)}]")


def _factor(weights: np.ndarray, advantages: np.ndarray) -> float | None:
    """Return the float32 by which a rollout's weights give exactly its advantages, as float32; None: there is none."""
    is_used = weights != 0
    if not np.isfinite(weights).all() or not np.isfinite(advantages).all() or not is_used.any():
        return None
    with np.errstate(over="ignore"):
        factor = np.float32(np.median(advantages[is_used] / weights[is_used].astype(np.float64)))
        is_exact = np.array_equal((weights * factor).view(np.uint32), advantages.view(np.uint32))
    return float(factor) if is_exact else None


def pack_json(content: Any) -> str:
    """Return any JSON like a piece."""
    return _pack(json.dumps(_for_json(content), allow_nan=False, ensure_ascii=False))


def head(credit: Credit, shown: Credit, pieces: list[tuple[int, int]]) -> dict[str, Any]:
    """Return what the page needs at once: facts of the run, batches, prompts, and the table of paid tokens."""
    prompts = prompts_of(shown.table)
    batches = credit_sums(credit)
    for sums in batches:
        meta = credit.metas[sums["step"]]
        sums["meta"] = {key: value for key, value in meta.items() if isinstance(value, str | int | float | None)}
    paid = {}
    for kind in KINDS:
        paid[kind] = paid_by_text(credit, kind)[["text", "count", "credit"]].to_dict("list")
    return {
        "name": credit.name,
        "methods": credit.methods,
        "files": credit.files,
        "notes": shown.notes,
        "rollouts": shown.table.num_rows,
        "recorded": credit.table.num_rows,
        "batches": batches,
        "groups": _with_texts(shown.table, prompts),
        "largest": {f"{one.step} {one.kind}": one.largest for one in _largest(prompts).itertuples()},
        "rows": {name: shown.table[name].to_pylist() for name in _ROW_COLUMNS},
        "pieces": pieces,
        "completions": _other_completions(shown.table),
        "paid": paid,
    }


def _largest(prompts: "DataFrame") -> "DataFrame":
    """Return the largest abs(advantage) of a token by step and kind."""
    return prompts.groupby(["step", "kind"], sort=False, as_index=False)["largest"].max()


def _with_texts(table: Any, prompts: "DataFrame") -> list[dict[str, Any]]:
    """Return a dict for each prompt, with its text; its reward is None where no rollout has one."""
    texts = table["prompt"].take(prompts["first"].to_numpy()).to_pylist()
    groups = prompts.assign(prompt=[text or "" for text in texts]).to_dict("records")
    return [one | {"reward": None if np.isnan(one["reward"]) else one["reward"]} for one in groups]


def _other_completions(table: Any) -> dict[int, str]:
    """Return by row the completions whose text is not part of their joined tokens."""
    import pyarrow.compute as pc

    joined = pc.binary_join(table["tokens"].combine_chunks(), "").to_pylist()
    texts = zip(joined, table["completion"].to_pylist(), strict=True)
    return {row: text for row, (tokens, text) in enumerate(texts) if text and text.strip() not in (tokens or "")}


def _as_json(lists: Any) -> list[str]:
    """Return the JSON of each list of numbers of a pyarrow array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = lists.flatten()
    texts = numbers.cast(pa.string())
    if pa.types.is_floating(numbers.type):
        for odd, name in (("nan", '"NaN"'), ("-nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"')):
            texts = pc.if_else(pc.equal(texts, odd), name, texts)
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, pc.fill_null(texts, "null")), ",")
    known = zip(joined.to_pylist(), lists.is_valid().to_pylist(), strict=True)
    return [f"[{text}]" if is_list else "null" for text, is_list in known]


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


def _pack(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 6)).decode()
