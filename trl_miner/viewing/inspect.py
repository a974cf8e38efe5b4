"""The page of `trl-miner inspect`: prompts, their rollouts, and what each token was paid, in one HTML file.

It loads nothing and opens from disk: its content security policy lets its own style and script run and nothing else.
"""

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..progress import track
from ..runs.files import write_whole
from ..runs.token_credit import KINDS, NULL_BITS, Credit, groups_of, token_counts, token_numbers
from .credit import absolute, credit_sums, paid_by_text, read_credit
from .packing import Words, find_words, pack, pack_json, pack_pieces, plan_pieces, planes
from .templates import asset, template

_SCRIPTS = ("inspect_data.js", "inspect_text.js", "inspect_paid.js", "inspect_find.js", "inspect.js")


def write_inspect_page(
    run: str | Path | Credit,
    path: str | Path | None = None,
    *,
    max_rollouts: int | None = None,
    quiet: bool = True,
) -> Path:
    """Write the page.

    Args:
        run: Output folder of a training with `log_token_credit: true`, or what `read_credit` made of it.
        path: The HTML file. Default: `inspect.html` in the run folder.
        max_rollouts: Show at most so many, whole prompts spread over steps and kinds, and say so. Sums and the table
            of paid tokens are of all. Default: show all.
        quiet: Show no progress.

    Returns:
        The path written.

    Raises:
        FileNotFoundError: The folder is no run, or holds no token records.
        ValueError: See `read_credit`; or `path` is missing where there is no folder, or `max_rollouts` is too few.
    """
    credit = run if isinstance(run, Credit) else read_credit(run, quiet=quiet)
    if path is None:
        if isinstance(run, Credit):
            raise ValueError("path must be given with records that were read before: got None.")
        path = Path(run) / "inspect.html"
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} must lie in a folder that exists. Make {path.parent} first.")
    write_whole(path, _page(credit, max_rollouts, quiet))
    return path


def choose_prompts(table: Any, max_rollouts: int) -> np.ndarray:
    """Return the rows of a `Credit.table` to show: whole prompts, as evenly over steps and kinds as they come."""
    starts, sizes = groups_of(table)
    steps, kinds = table["step"].to_numpy()[starts], table["kind"].to_numpy()[starts]
    places = {step: _spread(place) for place, step in enumerate(np.unique(steps))}
    seen: dict[Any, int] = {}
    order = []
    for prompt, key in enumerate(zip(steps.tolist(), kinds.tolist(), strict=True)):
        seen[key] = seen.get(key, -1) + 1
        order.append((seen[key], places[key[0]], KINDS.index(key[1]), prompt))
    chosen, left = [], max_rollouts
    for *_, prompt in sorted(order):
        if sizes[prompt] <= left:
            chosen.append(prompt)
            left -= sizes[prompt]
    if not chosen and len(starts):
        raise ValueError(
            f"max_rollouts must let one prompt in: got {max_rollouts}, and one has {sizes.min()} rollouts."
        )
    return np.concatenate([np.arange(0), *(np.arange(starts[p], starts[p] + sizes[p]) for p in sorted(chosen))])


def _spread(place: int) -> float:
    """Mirror the bits at the point: 0, 1/2, 1/4, 3/4, ... lie evenly, however few of them are taken."""
    return int(f"{place:b}"[::-1], 2) / 2 ** place.bit_length()


def _page(credit: Credit, max_rollouts: int | None, quiet: bool) -> Iterator[bytes]:
    from markupsafe import Markup

    style, script = asset("inspect.css"), "\n".join(map(asset, _SCRIPTS))
    sources = f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}"
    parts = template("inspect.html").generate(
        policy=Markup(f"{sources}; base-uri 'none'; form-action 'none'"),
        title=f"{credit.name} · trl-miner inspect",
        style=Markup(style),
        script=Markup(script),
        blocks=((name, Markup(content.decode())) for name, content in _blocks(credit, max_rollouts, quiet)),
    )
    return (part.encode() for part in parts)


def _source(content: str) -> str:
    """Return what a content security policy calls a style or a script: its hash."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _blocks(credit: Credit, max_rollouts: int | None, quiet: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the packed data of the page by name, one at a time, as together they may be large."""
    shown, words = _cut(credit, find_words(credit.table), max_rollouts)
    starts, sizes = groups_of(shown.table)
    pieces = plan_pieces(starts, sizes, token_counts(shown.table))
    yield "head", pack_json(_head(credit, shown, pieces))
    yield "words", pack_json({"texts": words.texts, "ids": words.ids, "text_of": words.text_of})
    yield "rows", pack(_rows(shown.table))
    packed = pack_pieces(shown.table, words, pieces)
    for index, piece in enumerate(track(packed, "writing", total=len(pieces), unit="pieces", quiet=quiet)):
        yield f"piece-{index}", piece


def _cut(credit: Credit, words: Words, max_rollouts: int | None) -> tuple[Credit, Words]:
    """Return the rollouts to show, with a note where they are not all."""
    num_rows = credit.table.num_rows
    if max_rollouts is None or num_rows <= max_rollouts:
        return credit, words
    rows = choose_prompts(credit.table, max_rollouts)
    is_shown = np.repeat(np.isin(np.arange(num_rows), rows), token_counts(credit.table))
    note = (
        f"{len(rows):,} of {num_rows:,} recorded rollouts are shown, whole prompts spread over steps and kinds "
        f"(--max-rollouts {max_rollouts}). The sums of the batches and the table of paid tokens are of all."
    )
    shown = replace(credit, table=credit.table.take(rows), notes=(*credit.notes, note))
    return shown, replace(words, words=words.words[is_shown])


def _head(credit: Credit, shown: Credit, pieces: list[tuple[int, int]]) -> dict[str, Any]:
    """Return what the page needs at once: facts of the run, batches, prompts, and the table of paid tokens."""
    per_row, largest = _paid_rows(shown.table)
    batches = credit_sums(credit)
    for sums in batches:
        meta = credit.metas[sums["step"]]
        sums["meta"] = {key: value for key, value in meta.items() if isinstance(value, str | int | float | None)}
    paid = {}
    for kind in KINDS:
        _, counts, credits = paid_by_text(credit, kind)
        there = np.flatnonzero(counts)
        paid[kind] = {"text": there, "count": counts[there], "credit": credits[there]}
    return {
        "name": credit.name,
        "methods": credit.methods,
        "files": credit.files,
        "notes": shown.notes,
        "rollouts": shown.table.num_rows,
        "recorded": credit.table.num_rows,
        "batches": batches,
        "groups": _groups(shown.table, per_row, largest),
        "largest": _largest(shown.table, largest),
        "pieces": pieces,
        "completions": _other_completions(shown.table),
        "paid": paid,
    }


def _groups(table: Any, per_row: np.ndarray, largest: np.ndarray) -> list[dict[str, Any]]:
    """Return one dict per prompt; for the arrays see `_paid_rows`."""
    import pyarrow as pa

    starts, sizes = groups_of(table)
    rewards = table["reward"].to_numpy().astype(np.float64)
    prompts = table.select(["step", "group", "kind", "prompt"]).take(pa.array(starts)).to_pylist()
    groups = []
    for prompt, first, size in zip(prompts, starts.tolist(), sizes.tolist(), strict=True):
        rows = slice(first, first + size)
        known = rewards[rows][~np.isnan(rewards[rows])]
        groups.append(
            {
                **prompt,
                "prompt": prompt["prompt"] or "",
                "first": first,
                "size": size,
                "reward": float(known.mean()) if len(known) else None,
                "paid": int((largest[rows] > 0).sum()),
                "credit": float(per_row[rows].sum()),
                "largest": float(largest[rows].max()),
            }
        )
    return groups


def _paid_rows(table: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return (N,) summed and (N,) largest abs(advantage) of each rollout."""
    counts = token_counts(table)
    paid = absolute(token_numbers(table, "advantages"))
    rows = np.repeat(np.arange(len(counts)), counts)
    largest = np.zeros(len(counts))
    np.maximum.at(largest, rows, paid)
    return np.bincount(rows, weights=paid, minlength=len(counts)), largest


def _largest(table: Any, largest_of_row: np.ndarray) -> dict[str, float]:
    """Return by "STEP KIND" the largest abs(advantage) of a token."""
    rows = table.select(["step", "kind"]).to_pandas().assign(largest=largest_of_row)
    largest = rows.groupby(["step", "kind"], sort=False)["largest"].max()
    return {f"{step} {kind}": value for (step, kind), value in largest.items()}


def _other_completions(table: Any) -> dict[int, str]:
    """Return by row the completions whose text is not part of their joined tokens."""
    import pyarrow.compute as pc

    joined = pc.binary_join(table["tokens"].combine_chunks(), "").to_pylist()
    texts = zip(joined, table["completion"].to_pylist(), strict=True)
    return {row: text for row, (tokens, text) in enumerate(texts) if text and text.strip() not in (tokens or "")}


def _rows(table: Any) -> bytes:
    """Return one number per rollout and column, as `planes` lays them out."""
    columns = []
    for name in ("reward", "verifier_reward", "grpo_advantage", "advantage", "nll"):
        values = table[name].to_numpy().astype(np.float32)
        values.view(np.uint32)[~table[name].is_valid().to_numpy()] = NULL_BITS
        columns.append(values)
    columns += [table[name].to_numpy().astype(np.int32) for name in ("rollout", "length")]
    return planes(*columns, token_counts(table).astype(np.int32))
