"""The page of `trl-miner inspect`: prompts, their rollouts, and what each token was paid, in one HTML file.

It loads nothing and opens from disk: its content security policy lets its own style and script run and nothing else.
"""

import base64
import hashlib
import math
from collections.abc import Collection, Iterator
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

MOST_TOKENS = 2_000_000  # of a page unless asked for more: 18 to 37 MB, which open in a second
_CHARACTERS = 4  # of a token of a prompt, or more

_SCRIPTS = ("inspect_data.js", "inspect_text.js", "inspect_paid.js", "inspect_find.js", "inspect.js")


def write_inspect_page(
    run: str | Path | Credit,
    path: str | Path | None = None,
    *,
    max_rollouts: int | None = None,
    max_tokens: int | None = MOST_TOKENS,
    steps: Collection[int] | None = None,
    quiet: bool = True,
) -> Path:
    """Write the page, of all recorded rollouts or of whole prompts spread over steps and kinds.

    A page that leaves rollouts out says so, and how to see them. Its sums and its table of paid tokens are of all.

    Args:
        run: Output folder of a training with `log_token_credit: 10`, or what `read_credit` made of it.
        path: The HTML file. Default: `inspect.html` in the run folder.
        max_rollouts: Show at most so many. None: no such limit.
        max_tokens: Show prompts of at most so many tokens together, and at least one. None: no such limit.
        steps: Recorded steps to show. None: all.
        quiet: Show no progress.

    Returns:
        The path written.

    Raises:
        FileNotFoundError: The folder is no run, or holds no token records.
        ValueError: See `read_credit`; or `path` is missing where there is no folder, `max_rollouts` is too few, or a
            step was not recorded.
    """
    credit = run if isinstance(run, Credit) else read_credit(run, quiet=quiet)
    if path is None:
        if isinstance(run, Credit):
            raise ValueError("path must be given with records that were read before: got None.")
        path = Path(run) / "inspect.html"
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} must lie in a folder that exists. Make {path.parent} first.")
    shown, words = _cut(credit, max_rollouts, max_tokens, steps)
    write_whole(path, _page(credit, shown, words, quiet))
    return path


def choose_prompts(
    table: Any,
    max_rollouts: int | None = None,
    max_tokens: int | None = None,
    steps: Collection[int] | None = None,
) -> np.ndarray:
    """Return the rows of a `Credit.table` to show: whole prompts, as evenly over steps and kinds as they come.

    Where not every step has room, the first, the last and the one with the most credit come before the others.
    """
    import pyarrow.compute as pc

    starts, sizes = groups_of(table)
    step_of = table["step"].to_numpy()[starts]
    recorded = np.unique(step_of)
    if unknown := sorted(set(steps or ()) - {*recorded.tolist()}):
        raise ValueError(f"--steps must name recorded steps: got {unknown[0]}, and there are {_listed(recorded)}.")
    prompts = np.flatnonzero(np.isin(step_of, recorded if steps is None else [*steps]))
    if not len(prompts):
        return np.arange(0)
    sums, tokens = (np.add.reduceat(per_row, starts) for per_row in (_paid_rows(table)[0], token_counts(table)))
    characters = pc.fill_null(pc.utf8_length(table["prompt"]), 0).to_numpy()[starts]
    tokens = tokens + characters // _CHARACTERS  # a prompt is recorded as text alone
    shown_steps, place_of = np.unique(step_of[prompts], return_inverse=True)
    priorities = [_spread(place) for place in range(len(shown_steps))]
    for priority, place in ((-1, np.bincount(place_of, weights=sums[prompts]).argmax()), (-2, -1), (-3, 0)):
        priorities[place] = priority
    kinds = table["kind"].to_numpy()[starts[prompts]]
    seen: dict[Any, int] = {}
    order = []
    for prompt, *key in zip(prompts.tolist(), place_of.tolist(), kinds.tolist(), strict=True):
        seen[tuple(key)] = seen.get(tuple(key), -1) + 1
        order.append((seen[tuple(key)], priorities[key[0]], KINDS.index(key[1]), prompt))
    rollouts_left, tokens_left = (math.inf if most is None else most for most in (max_rollouts, max_tokens))
    chosen: list[int] = []
    for *_, prompt in sorted(order):
        if sizes[prompt] <= rollouts_left and (tokens[prompt] <= tokens_left or not chosen):
            chosen.append(prompt)
            rollouts_left, tokens_left = rollouts_left - sizes[prompt], tokens_left - tokens[prompt]
    if not chosen:
        raise ValueError(
            f"max_rollouts must let one prompt in: got {max_rollouts}, and one has {sizes[prompts].min()} rollouts."
        )
    return np.concatenate([np.arange(starts[p], starts[p] + sizes[p]) for p in sorted(chosen)])


def _listed(steps: np.ndarray) -> str:
    """Return a few of many steps, or all."""
    texts = [str(step) for step in steps.tolist()]
    return ", ".join(texts if len(texts) <= 8 else [*texts[:4], "...", *texts[-3:]]) or "none"


def _spread(place: int) -> float:
    """Mirror the bits at the point: 0, 1/2, 1/4, 3/4, ... lie evenly, however few of them are taken."""
    return int(f"{place:b}"[::-1], 2) / 2 ** place.bit_length()


def _page(credit: Credit, shown: Credit, words: Words, quiet: bool) -> Iterator[bytes]:
    from markupsafe import Markup

    style, script = asset("inspect.css"), "\n".join(map(asset, _SCRIPTS))
    sources = f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}"
    parts = template("inspect.html").generate(
        policy=Markup(f"{sources}; base-uri 'none'; form-action 'none'"),
        title=f"{credit.name} · trl-miner inspect",
        style=Markup(style),
        script=Markup(script),
        blocks=((name, Markup(content.decode())) for name, content in _blocks(credit, shown, words, quiet)),
    )
    return (part.encode() for part in parts)


def _source(content: str) -> str:
    """Return what a content security policy calls a style or a script: its hash."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _blocks(credit: Credit, shown: Credit, words: Words, quiet: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the packed data of the page by name, one at a time, as together they may be large."""
    starts, sizes = groups_of(shown.table)
    pieces = plan_pieces(starts, sizes, token_counts(shown.table))
    yield "head", pack_json(_head(credit, shown, pieces))
    yield "words", pack_json({"texts": words.texts, "ids": words.ids, "text_of": words.text_of})
    yield "rows", pack(_rows(shown.table))
    packed = pack_pieces(shown.table, words, pieces)
    for index, piece in enumerate(track(packed, "writing", total=len(pieces), unit="pieces", quiet=quiet)):
        yield f"piece-{index}", piece


def _cut(
    credit: Credit, max_rollouts: int | None, max_tokens: int | None, steps: Collection[int] | None
) -> tuple[Credit, Words]:
    """Return the rollouts to show, with a note where they are not all, and the words of their tokens."""
    words, num_rows = find_words(credit.table), credit.table.num_rows
    rows = choose_prompts(credit.table, max_rollouts, max_tokens, steps)
    if len(rows) == num_rows:
        return credit, words
    is_shown = np.repeat(np.isin(np.arange(num_rows), rows), token_counts(credit.table))
    limits = [f"--max-rollouts {max_rollouts}"] if max_rollouts is not None else []
    limits += [f"--steps {' '.join(map(str, sorted(steps)))}"] if steps is not None else []
    limits += [f"at most {max_tokens:,} tokens"] if max_tokens is not None else []
    note = (
        f"{len(rows):,} of {num_rows:,} recorded rollouts are shown, whole prompts spread over steps and kinds "
        f"({', '.join(limits)}). The sums of the batches and the table of paid tokens are of all. To see others: "
        f"trl-miner inspect RUN --steps STEP; to see all: --max-rollouts {num_rows}."
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
