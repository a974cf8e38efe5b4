"""The page of `trl-miner inspect`: prompts, their rollouts, and the credit of each token, in one
HTML file.

It loads nothing and opens from disk: its content security policy lets its own style and script run
and nothing else. Its data is deflated JSON in base64, prompt by prompt, which the browser reads
when needed. A number has the fewest digits that give its float32 back. NaN and infinities, which
JSON lacks, are texts that JavaScript's Number() takes; null is a number that is not known.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ..common.progress import track
from ..prompt_kinds import PromptKind
from ..runs.files import write_whole
from ..runs.token_credit import FOLDER, Credit, groups_of, read_credit, token_counts
from .credit import token_texts
from .pages import asset, template
from .prompt_outcomes import by_chance, check_steps
from .rollout_credit import MOST_TOKENS, credit_of_rollouts
from .rollouts import find_rollouts

_ROW_COLUMNS = "reward verifier_reward grpo_advantage advantage nll rollout length".split()
_TOKEN_COLUMNS = ("old_logps", "weights", "advantages_before", "advantages")
_TEXT_OR_ODD = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b')
_CHARACTERS = 4  # of a token of a prompt, or more


def write_inspect_page(
    credit: Credit, path: str | Path, *, steps: Collection[int] | None = None, quiet: bool = True
) -> Path:
    """Write the page, of all recorded rollouts or, of more than `MOST_TOKENS`, of whole prompts,
    chosen at random.

    A page that leaves rollouts out says so, and how to see them.

    Args:
        credit: What `read_credit` made of a training with `log_token_credit: 10`.
        path: The HTML file.
        steps: Recorded steps to show. None: all.
        quiet: Show no progress.

    Returns:
        The path written.
    """
    path, shown = Path(path), credit.table.take(choose_prompts(credit.table, steps))
    notes = credit.notes
    if shown.num_rows < credit.table.num_rows:
        notes += (
            (
                f"{shown.num_rows:,} of {credit.table.num_rows:,} recorded rollouts are shown: at"
                f" most {MOST_TOKENS:,} tokens, whole prompts by chance. To see others: trl-miner"
                " inspect RUN --steps STEP."
            ),
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _page(replace(credit, table=shown, notes=notes), quiet))
    return path


def read_shown(
    run: str | Path, *, steps: Collection[int] | None = None, quiet: bool = True
) -> Credit:
    """Return the token records of a run or, where it has none, its rollouts; of many a part.

    Raises:
        FileNotFoundError: It has neither.
        ValueError: A file is damaged.
    """
    if (Path(run) / FOLDER).is_dir() or find_rollouts(run) is None:
        return read_credit(run, quiet=quiet)
    return credit_of_rollouts(run, steps=steps, quiet=quiet)


def choose_prompts(table: Any, steps: Collection[int] | None = None) -> np.ndarray:
    """Return the rows of a `Credit.table` to show: whole prompts, where not all have room a random
    choice of them."""
    import pyarrow.compute as pc

    starts, sizes = groups_of(table)
    recorded = table["step"].to_numpy()[starts]
    check_steps(steps, recorded)
    characters = pc.fill_null(pc.utf8_length(table["prompt"]), 0).to_numpy()[starts]
    ends = np.cumsum(token_counts(table))[starts + sizes - 1]
    # a prompt is recorded as text alone
    tokens = np.diff(ends, prepend=0) + characters // _CHARACTERS
    prompts = np.flatnonzero(np.isin(recorded, [*steps])) if steps else np.arange(len(starts))
    kept = prompts[by_chance(tokens[prompts], MOST_TOKENS)]
    return np.concatenate(
        [np.arange(0), *(np.arange(starts[one], starts[one] + sizes[one]) for one in kept)]
    )


def _page(credit: Credit, quiet: bool) -> Iterator[bytes]:
    from markupsafe import Markup

    kinds = json.dumps({kind: kind.words.capitalize() for kind in PromptKind})
    style, script = asset("inspect.css"), f"const KIND_NAMES = {kinds};\n{asset('inspect.js')}"
    hashes = [
        base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        for part in (style, script)
    ]
    sources = "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'".format(*hashes)
    parts = template("inspect.html").generate(
        policy=Markup(f"{sources}; base-uri 'none'; form-action 'none'"),
        title=f"{credit.name} · trl-miner inspect",
        style=Markup(style),
        script=Markup(script),
        blocks=((name, Markup(content)) for name, content in _blocks(credit, quiet)),
    )
    return (part.encode() for part in parts)


def _blocks(credit: Credit, quiet: bool) -> Iterator[tuple[str, str]]:
    """Yield the data of the page by name, one prompt at a time, as together they may be large."""
    import pyarrow as pa

    table = credit.table
    texts, (starts, sizes) = token_texts(table), groups_of(table)
    first = table.select(["step", "group", "kind", "prompt"]).take(starts).to_pylist()
    places = [*zip(starts.tolist(), sizes.tolist(), strict=True)]
    rewards = [table["reward"].slice(*place).drop_null().to_pylist() for place in places]
    head = {
        "name": credit.name,
        "methods": credit.methods,
        "notes": credit.notes,
        "steps": np.unique(table["step"]).tolist(),
        "prompts": [
            {
                **one,
                "prompt": one["prompt"] or "",
                "rollouts": size,
                "reward": fmean(own) if own else None,
            }
            for one, size, own in zip(first, sizes.tolist(), rewards, strict=True)
        ],
        "texts": texts.dictionary.to_pylist(),
    }
    yield "head", pack_json(head)
    lists = {name: _shortest(table[name].combine_chunks()) for name in _TOKEN_COLUMNS}
    rows = {name: table[name] for name in _ROW_COLUMNS}
    rollouts = pa.table({"texts": _lists(token_counts(table), texts.indices), **lists, **rows})
    for index, place in enumerate(
        track(places, "writing", total=len(starts), unit="prompts", quiet=quiet)
    ):
        yield f"prompt-{index}", pack_json(rollouts.slice(*place).to_pylist())


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
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    text = _TEXT_OR_ODD.sub(lambda found: found[0] if found[0][0] == '"' else f'"{found[0]}"', text)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 6)).decode()
