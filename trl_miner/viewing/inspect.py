"""The page of `trl-miner inspect`: prompts, their rollouts, and what each token was paid, in one HTML file.

It loads nothing and opens from disk: its content security policy lets its own style and script run and nothing else.
Its data is deflated JSON in base64, in pieces that the browser reads when needed. A number has the fewest digits that
give its float32 back. NaN and infinities, which JSON lacks, are the texts that JavaScript's Number() takes; null is a
number that is not known.
"""

import base64
import hashlib
import json
import math
import re
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..progress import track
from ..prompt_kinds import PromptKind
from ..runs.files import write_whole
from ..runs.token_credit import KINDS, Credit, groups_of, token_counts
from .credit import credit_sums, paid_tokens, prompts_of, read_credit, token_texts
from .templates import asset, template

TOKENS_PER_PIECE = 1 << 16
_ROW_COLUMNS = ("reward", "verifier_reward", "grpo_advantage", "advantage", "nll", "rollout", "length")
_TOKEN_COLUMNS = ("old_logps", "weights", "advantages_before", "advantages")
_TEXT_OR_ODD = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b')
MOST_TOKENS = 1_500_000  # of a page unless asked for more: at most 37 MB, which open in a second
_CHARACTERS = 4  # of a token of a prompt, or more

_SCRIPTS = ("inspect_data.js", "inspect_text.js", "inspect_paid.js", "inspect_find.js", "inspect.js")


@dataclass(frozen=True)
class Words:
    """The tokens of a page: distinct texts; of each word (W,) its token id and the index of its text; (T,) words."""

    texts: list[str]
    ids: np.ndarray
    text_of: np.ndarray
    words: np.ndarray


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

    prompts = prompts_of(table)
    characters = pc.fill_null(pc.utf8_length(table["prompt"]), 0).to_numpy()[prompts["first"]]
    prompts["tokens"] += characters // _CHARACTERS  # a prompt is recorded as text alone
    recorded = prompts["step"].unique()
    if unknown := sorted(set(steps or ()) - {*recorded.tolist()}):
        raise ValueError(f"--steps must name recorded steps: got {unknown[0]}, and there are {_listed(recorded)}.")
    prompts = prompts[prompts["step"].isin(recorded if steps is None else [*steps])]
    if not len(prompts):
        return np.arange(0)
    by_step = prompts.groupby("step")["credit"].sum()
    priorities = {step: _van_der_corput(place) for place, step in enumerate(by_step.index)}
    priorities |= {by_step.idxmax(): -1, by_step.index[-1]: -2, by_step.index[0]: -3}
    order = prompts.assign(
        turn=prompts.groupby(["step", "kind"]).cumcount(),
        priority=prompts["step"].map(priorities),
        kind=prompts["kind"].map(KINDS.index),
    ).sort_values(["turn", "priority", "kind", "first"])
    rollouts_left, tokens_left = (math.inf if most is None else most for most in (max_rollouts, max_tokens))
    chosen: list[Any] = []
    for prompt in order.itertuples():
        if prompt.size <= rollouts_left and (prompt.tokens <= tokens_left or not chosen):
            chosen.append(prompt)
            rollouts_left, tokens_left = rollouts_left - prompt.size, tokens_left - prompt.tokens
    if not chosen:
        raise ValueError(
            f"max_rollouts must let one prompt in: got {max_rollouts}, and one has {prompts['size'].min()} rollouts."
        )
    chosen.sort(key=lambda prompt: prompt.first)
    return np.concatenate([np.arange(prompt.first, prompt.first + prompt.size) for prompt in chosen])


def _listed(steps: np.ndarray) -> str:
    """Return a few of many steps, or all."""
    texts = [str(step) for step in steps.tolist()]
    return ", ".join(texts if len(texts) <= 8 else [*texts[:4], "...", *texts[-3:]]) or "none"


def _van_der_corput(place: int) -> float:
    """Mirror the bits at the point: 0, 1/2, 1/4, 3/4, ... lie evenly, however few of them are taken."""
    return int(f"{place:b}"[::-1], 2) / 2 ** place.bit_length()


def _page(credit: Credit, shown: Credit, words: Words, quiet: bool) -> Iterator[bytes]:
    from markupsafe import Markup

    kinds = json.dumps({kind: kind.words.capitalize() for kind in PromptKind})
    data, *scripts = map(asset, _SCRIPTS)
    style, script = asset("inspect.css"), "\n".join([data, f"const KIND_NAMES = {kinds};", *scripts])
    sources = f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}"
    parts = template("inspect.html").generate(
        policy=Markup(f"{sources}; base-uri 'none'; form-action 'none'"),
        title=f"{credit.name} · trl-miner inspect",
        style=Markup(style),
        script=Markup(script),
        blocks=((name, Markup(content)) for name, content in _blocks(credit, shown, words, quiet)),
    )
    return (part.encode() for part in parts)


def _source(content: str) -> str:
    """Return what a content security policy calls a style or a script: its hash."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _blocks(credit: Credit, shown: Credit, words: Words, quiet: bool) -> Iterator[tuple[str, str]]:
    """Yield the data of the page by name, one at a time, as together they may be large."""
    pieces = plan_pieces(shown.table)
    yield "head", pack_json(head(credit, shown, pieces))
    yield "words", pack_json({"texts": words.texts, "ids": words.ids, "text_of": words.text_of})
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
