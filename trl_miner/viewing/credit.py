"""Which tokens get credit: as a table, as a picture, and one rollout as a snippet for a notebook."""

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runs.token_credit import KINDS, NULL_BITS, Credit, groups_of, read_credit, token_counts, token_numbers
from ..text import visible
from .figures import new_figure, save

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "Credit",
    "credited_tokens",
    "draw_credited_tokens",
    "read_credit",
    "rollout_html",
]

UP, DOWN = "0,114,178", "230,159,0"  # blue and orange of Okabe-Ito, distinguishable for color-blind readers


def credited_tokens(credit: Credit, kind: str = "PH") -> "DataFrame":
    """Return which tokens got the credit of one kind of prompt, over all steps.

    Args:
        credit: Of `read_credit`.
        kind: "PH" (all right), "HE" (mixed), "NH" (all wrong) or "unscorable".

    Returns:
        A row per token text, most credit first: "token", its text; "count", how often it was recorded; "credit", its
        summed abs(advantage) after calibration; "share" of all credit of the kind, NaN where there is none; "mean",
        credit per occurrence. Advantages that are not finite count as 0.
    """
    import pandas as pd

    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}: got {kind!r}.")
    texts, advantages = token_texts(credit.table), token_numbers(credit.table, "advantages")
    is_kind = np.repeat(credit.table["kind"].to_numpy() == kind, token_counts(credit.table))
    is_kind &= advantages.view(np.uint32) != NULL_BITS  # a tool's
    tokens = pd.DataFrame({"text": texts.indices.to_numpy()[is_kind], "credit": _absolute(advantages[is_kind])})
    rows = tokens.groupby("text")["credit"].agg(count="size", credit="sum")
    rows.insert(0, "token", np.array([*texts.dictionary.to_pylist(), None], dtype=object)[rows.index])
    rows = rows.assign(share=rows["credit"] / (rows["credit"].sum() or np.nan), mean=rows["credit"] / rows["count"])
    return rows.sort_values(["credit", "count", "token"], ascending=[False, False, True], ignore_index=True)


def token_texts(table: Any) -> Any:
    """Return the texts of all tokens of the `table` of a `Credit`, as a pyarrow dictionary array; null is ""."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.list_flatten(table["tokens"].combine_chunks()), "").dictionary_encode()


def prompts_of(table: Any) -> "DataFrame":
    """Return a row for each prompt of the `table` of a `Credit`.

    Columns: "step", "group", "kind"; "first", its first row, and "size", its rollouts; "tokens"; "reward", their mean,
    NaN where none is known; "credited", rollouts with an advantage; "credit", the sum and "largest", the largest
    abs(advantage) of a token.
    """
    import pandas as pd

    rows = table.select(["step", "group", "kind", "reward"]).to_pandas()
    rows["tokens"] = token_counts(table)
    credit = pd.Series(_absolute(token_numbers(table, "advantages")))
    of_row = credit.groupby(np.repeat(np.arange(table.num_rows), rows["tokens"]))
    rows["credit"], rows["largest"] = (of_row.agg(what).reindex(rows.index, fill_value=0.0) for what in ("sum", "max"))
    starts, sizes = groups_of(table)
    rows["credited"], rows["reward"] = rows["largest"] > 0, rows["reward"].astype(float)
    of_prompt = rows.groupby(np.repeat(np.arange(len(starts)), sizes))
    whats = {"step": "first", "group": "first", "kind": "first", "reward": "mean", "largest": "max"}
    whats |= dict.fromkeys(("tokens", "credited", "credit"), "sum")
    return of_prompt.agg(whats).assign(first=starts, size=sizes)


def _absolute(advantages: np.ndarray) -> np.ndarray:
    """Return abs(advantages) in float64, 0 where it is not finite."""
    return np.where(np.isfinite(advantages), np.abs(advantages.astype(np.float64)), 0.0)


def draw_credited_tokens(
    run: str | Path | Credit, path: str | Path | None = None, *, kind: str = "PH", num_tokens: int = 20
) -> Any:
    """Draw the tokens with the most credit as bars: their share of the credit, and the credit of one occurrence.

    Args:
        run: Run folder, or what `read_credit` made of it.
        path: A .png or .svg file to write; None: write nothing.
        kind: As for `credited_tokens`.
        num_tokens: Bars at most.

    Returns:
        The matplotlib figure.
    """
    credit = run if isinstance(run, Credit) else read_credit(run)
    rows = credited_tokens(credit, kind).query("credit > 0")[:num_tokens]
    size = (9, 1.3 + 0.27 * max(len(rows), 4))
    figure, (shares, means) = new_figure(2, size=size, sharey=True)
    name = _in_font(visible(credit.name[:60]))
    figure.suptitle(f"Tokens with the most credit ({kind} prompts, {name})", parse_math=False)
    if rows.empty:
        figure.text(0.5, 0.4, f"No token of a {kind} prompt has an advantage.", ha="center")
    places = list(range(len(rows)))
    shares.barh(places, 100 * rows["share"], color="#0072B2", height=0.7)
    means.plot(rows["mean"], places, "o", color="#E69F00", markeredgecolor="black")
    for axes, label in ((shares, "share of the credit, %"), (means, "mean abs(advantage) of an occurrence")):
        axes.set_xlabel(label)
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter("{x:.3g}")
        axes.grid(visible=False, axis="y")
    labels = [
        f"{_in_font(visible(token[:24], spaces=True))}  ({count:,}×)"
        for token, count in zip(rows["token"], rows["count"], strict=True)
    ]
    shares.set_yticks(places, labels, parse_math=False)
    shares.set_ylim(max(len(rows), 1) - 0.4, -0.6)
    return save(figure, path)


def rollout_html(credit: Credit, step: int, group: int, rollout: int) -> str:
    """Return one rollout with its tokens darkened by their credit: HTML for `IPython.display.HTML`.

    Args:
        credit: Of `read_credit`.
        step: Optimizer step.
        group: Index of the prompt in the generation batch.
        rollout: Index within the prompt.

    Returns:
        One `<div>` with its styles in it and no script. Blue: pushed up; orange, underlined: pushed down; grey, in
        italics: a tool's, not the model's. Darkness is abs(advantage), in units of the largest of the prompt's
        rollouts; the numbers of a token show on hover.

    Raises:
        ValueError: There is no such record.
    """
    prompts = prompts_of(credit.table)
    found = prompts[(prompts["step"] == step) & (prompts["group"] == group)]
    rows = [row for one in found.itertuples() for row in credit.table.slice(one.first, one.size).to_pylist()]
    one = next((row for row in rows if row["rollout"] == rollout), None)
    if one is None:
        raise ValueError(
            f"step, group and rollout must name a record: got {step}, {group}, {rollout}. The steps are "
            f"{', '.join(map(str, credit.metas))}; trl-miner inspect shows their groups."
        )
    texts, largest = one["tokens"] or [], found["largest"].iloc[0]
    columns = [one[name] or [None] * len(texts) for name in ("old_logps", "weights", "advantages")]
    spans = "".join(_span(largest, *token) for token in zip(texts, *columns, strict=True))
    facts = [f"step {step}, prompt {group}, rollout {rollout}", one["kind"], f"reward {_shown(one['reward'])}"]
    facts += [f"NLL {_shown(one['nll'])}", f"advantage {_shown(one['advantage'])}", f"{one['length']} tokens"]
    return (
        '<div style="background:#fff;color:#111;border:1px solid #bbb;border-radius:6px;padding:10px 14px;'
        'font:14px/1.7 ui-monospace,monospace;unicode-bidi:isolate">'
        f'<div style="font:13px sans-serif;color:#444;margin-bottom:6px">{html.escape(" · ".join(facts))}<br>'
        f"blue: pushed up; orange, underlined: pushed down; darkest: {largest:.4g}</div>"
        f'<div style="white-space:pre-wrap;overflow-wrap:anywhere">{spans}</div></div>'
    )


def _span(largest: float, text: str | None, logp: Any, weight: Any, advantage: Any) -> str:
    style, title = "border-radius:2px", "not the model's token, but a tool's"
    if advantage is None:
        style += ";color:#666;font-style:italic"
    else:
        title = f"log-prob {_shown(logp)}, weight {_shown(weight)}, advantage {_shown(advantage)}"
    if advantage and not np.isnan(advantage) and largest > 0:  # black text stays readable on the deepest color
        opacity = 0.6 * min(1.0, abs(advantage) / largest)
        style += f";background:rgba({UP if advantage > 0 else DOWN},{opacity:.3f})"
        style += "" if advantage > 0 else ";text-decoration:underline"
    return f'<span style="{style}" title="{html.escape(title)}">{html.escape(visible(text or ""))}</span>'


def _shown(number: float | None) -> str:
    """Return 4 significant digits."""
    return "none" if number is None else f"{number:.4g}"


def _in_font(text: str) -> str:
    """Return text that matplotlib's own font can show; other characters by their code, as fonts differ."""
    from matplotlib.font_manager import findfont, get_font

    has = get_font(findfont("DejaVu Sans")).get_char_index
    return "".join(c if has(ord(c)) else f"\\u{ord(c):04x}" for c in text)
