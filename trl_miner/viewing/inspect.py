"""The page of `trl-miner inspect`: prompts, their rollouts, and the credit of each token, in one HTML file.

It loads nothing and opens from disk: its content security policy lets its own style and script run and nothing else.
Its data is deflated JSON in base64, prompt by prompt, which the browser reads when needed. A number has the fewest
digits that give its float32 back. NaN and infinities, which JSON lacks, are texts that JavaScript's Number() takes;
null is a number that is not known.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..progress import track
from ..prompt_kinds import PromptKind
from ..runs.files import write_whole
from ..runs.token_credit import KINDS, Credit, groups_of, token_counts
from .credit import credited_tokens, prompts_of, token_texts
from .pages import asset, template

_ROW_COLUMNS = ("reward", "verifier_reward", "grpo_advantage", "advantage", "nll", "rollout", "length")
_TOKEN_COLUMNS = ("old_logps", "weights", "advantages_before", "advantages")
_TEXT_OR_ODD = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b')
MOST_TOKENS = 1_500_000  # of a page unless asked for more: at most 38 MB, which open in a second or two
_CHARACTERS = 4  # of a token of a prompt, or more

_SCRIPTS = ("inspect_data.js", "inspect_text.js", "inspect_tokens.js", "inspect_find.js", "inspect.js")


def write_inspect_page(
    credit: Credit,
    path: str | Path,
    *,
    max_tokens: int = MOST_TOKENS,
    steps: Collection[int] | None = None,
    quiet: bool = True,
) -> Path:
    """Write the page, of all recorded rollouts or of whole prompts, chosen at random.

    A page that leaves rollouts out says so, and how to see them. Its table of tokens is of all.

    Args:
        credit: What `read_credit` made of a training with `log_token_credit: 10`.
        path: The HTML file.
        max_tokens: Show prompts of at most so many tokens together, and at least one.
        steps: Recorded steps to show. None: all.
        quiet: Show no progress.

    Returns:
        The path written.
    """
    if max_tokens < 1:
        raise ValueError(f"--max-tokens must be at least 1: got {max_tokens}. The default is {MOST_TOKENS}.")
    path, shown = Path(path), _cut(credit, max_tokens, steps)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _page(credit, shown, quiet))
    return path


def choose_prompts(table: Any, max_tokens: int = MOST_TOKENS, steps: Collection[int] | None = None) -> np.ndarray:
    """Return the rows of a `Credit.table` to show: whole prompts, where not all have room a random choice of them."""
    import pyarrow.compute as pc

    prompts = prompts_of(table)
    characters = pc.fill_null(pc.utf8_length(table["prompt"]), 0).to_numpy()[prompts["first"]]
    prompts["tokens"] += characters // _CHARACTERS  # a prompt is recorded as text alone
    recorded = prompts["step"].unique()
    if unknown := sorted(set(steps or ()) - {*recorded.tolist()}):
        listed = ", ".join(map(str, recorded[:8])) + ", ..." * (len(recorded) > 8)
        raise ValueError(f"--steps must name recorded steps: got {unknown[0]}, and there are {listed}.")
    order = prompts[prompts["step"].isin([*steps] if steps else recorded)].sample(frac=1, random_state=0)
    tokens = order["tokens"].cumsum()
    chosen = order[tokens <= max(max_tokens, tokens.min())].sort_index()
    rows = [np.arange(one.first, one.first + one.size) for one in chosen[["first", "size"]].itertuples()]
    return np.concatenate(rows) if rows else np.arange(0)


def _page(credit: Credit, shown: Credit, quiet: bool) -> Iterator[bytes]:
    from markupsafe import Markup

    kinds = json.dumps({kind: kind.words.capitalize() for kind in PromptKind})
    data, *scripts = map(asset, _SCRIPTS)
    style, script = asset("inspect.css"), "\n".join([data, f"const KIND_NAMES = {kinds};", *scripts])
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (style, script)]
    sources = "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'".format(*hashes)
    parts = template("inspect.html").generate(
        policy=Markup(f"{sources}; base-uri 'none'; form-action 'none'"),
        title=f"{credit.name} · trl-miner inspect",
        style=Markup(style),
        script=Markup(script),
        blocks=((name, Markup(content)) for name, content in _blocks(credit, shown, quiet)),
    )
    return (part.encode() for part in parts)


def _blocks(credit: Credit, shown: Credit, quiet: bool) -> Iterator[tuple[str, str]]:
    """Yield the data of the page by name, one prompt at a time, as together they may be large."""
    import pyarrow as pa

    texts, (starts, sizes) = token_texts(shown.table), groups_of(shown.table)
    yield "head", pack_json(head(credit, shown) | {"texts": texts.dictionary.to_pylist()})
    lists = {name: _shortest(shown.table[name].combine_chunks()) for name in _TOKEN_COLUMNS}
    rollouts = pa.table({"texts": _lists(token_counts(shown.table), texts.indices), **lists})
    prompts = zip(starts.tolist(), sizes.tolist(), strict=True)
    for index, place in enumerate(track(prompts, "writing", total=len(starts), unit="prompts", quiet=quiet)):
        yield f"prompt-{index}", pack_json(rollouts.slice(*place).to_pylist())


def _cut(credit: Credit, max_tokens: int, steps: Collection[int] | None) -> Credit:
    """Return the rollouts to show, with a note where they are not all."""
    num_rows = credit.table.num_rows
    rows = choose_prompts(credit.table, max_tokens, steps)
    if len(rows) == num_rows:
        return credit
    of_steps = f"--steps {' '.join(map(str, sorted(steps)))}, " if steps else ""
    note = (
        f"{len(rows):,} of {num_rows:,} recorded rollouts are shown, whole prompts by chance ({of_steps}at most "
        f"{max_tokens:,} tokens). The table of tokens is of all. To see others: trl-miner inspect RUN --steps STEP; "
        f"to see more: --max-tokens N."
    )
    return replace(credit, table=credit.table.take(rows), notes=(*credit.notes, note))


def _shortest(lists: Any) -> Any:
    """Return lists of float64 whose shortest decimals are those of the float32 that they were."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return _lists(sizes, lists.flatten().cast(pa.string()).cast(pa.float64()), lists.is_null())


def _lists(sizes: np.ndarray, values: Any, mask: Any = None) -> Any:
    """Return values as lists of these sizes; null where the mask is."""
    import pyarrow as pa

    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, values, mask=mask)


def pack_json(content: Any) -> str:
    """Return deflated JSON in base64, in which numbers that JSON lacks are texts."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=np.ndarray.tolist)
    text = _TEXT_OR_ODD.sub(lambda found: found[0] if found[0][0] == '"' else f'"{found[0]}"', text)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 6)).decode()


def head(credit: Credit, shown: Credit) -> dict[str, Any]:
    """Return what the page needs at once: facts of the run, prompts, and the table of tokens."""
    prompts = prompts_of(shown.table)
    texts = shown.table["prompt"].take(prompts["first"].to_numpy()).to_pylist()
    groups = prompts.assign(prompt=[text or "" for text in texts]).to_dict("records")
    return {
        "name": credit.name,
        "methods": credit.methods,
        "notes": shown.notes,
        "rollouts": shown.table.num_rows,
        "recorded": credit.table.num_rows,
        "steps": [*credit.metas],
        "groups": [one | {"reward": None if np.isnan(one["reward"]) else one["reward"]} for one in groups],
        "rows": {name: shown.table[name].to_pylist() for name in _ROW_COLUMNS},
        "tokens": {
            kind: credited_tokens(credit, kind)[["token", "count", "credit"]].to_dict("list") for kind in KINDS
        },
    }
