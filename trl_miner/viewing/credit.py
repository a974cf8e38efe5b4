"""Which tokens were paid: as a table, as a picture, and one rollout as a snippet for a notebook."""

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runs.token_credit import KINDS, NULL_BITS, Credit, groups_of, has_list, read_credit, token_counts, token_numbers
from ..tables import Table
from ..text import visible
from .figures import new_figure, save

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "Credit",
    "credit_sums",
    "draw_paid_tokens",
    "paid_tokens",
    "paid_tokens_markdown",
    "read_credit",
    "rollout_html",
]

_NUMBERS = ("old_logps", "weights", "advantages_before", "advantages")
UP, DOWN = "0,114,178", "230,159,0"  # blue and orange of Okabe-Ito, distinguishable for color-blind readers


def paid_tokens(credit: Credit, kind: str = "PH") -> "DataFrame":
    """Return which tokens got the credit of one kind of prompt, over all steps.

    Args:
        credit: Of `read_credit`.
        kind: "PH" (all right), "HE" (mixed), "NH" (all wrong) or "unscorable".

    Returns:
        A row per token text, most credit first: "token", its text; "count", how often it was recorded; "credit", its
        summed abs(advantage) after calibration; "share" of all credit of the kind, NaN where there is none; "mean",
        credit per occurrence; and "text", its place in `token_texts`. Advantages that are not finite count as 0.
    """
    import pandas as pd

    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}: got {kind!r}.")
    texts, advantages = token_texts(credit.table), token_numbers(credit.table, "advantages")
    is_kind = np.repeat(credit.table["kind"].to_numpy() == kind, token_counts(credit.table))
    is_kind &= advantages.view(np.uint32) != NULL_BITS  # a tool's
    tokens = pd.DataFrame({"text": texts.indices.to_numpy()[is_kind], "paid": absolute(advantages[is_kind])})
    paid = tokens.groupby("text")["paid"].agg(count="size", credit="sum").reset_index()
    paid.insert(0, "token", pd.Series(texts.dictionary.to_pylist(), dtype=object).reindex(paid["text"]).to_numpy())
    paid = paid.assign(share=paid["credit"] / (paid["credit"].sum() or np.nan), mean=paid["credit"] / paid["count"])
    return paid.sort_values(["credit", "count", "token"], ascending=[False, False, True], ignore_index=True)


def token_texts(table: Any) -> Any:
    """Return the texts of all tokens of the `table` of a `Credit`, as a pyarrow dictionary array; null is ""."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.list_flatten(table["tokens"].combine_chunks()), "").dictionary_encode()


def paid_tokens_markdown(credit: Credit, kind: str = "PH", *, num_tokens: int = 20) -> str:
    """Return the first rows of `paid_tokens` as a Markdown table.

    Args:
        credit: Of `read_credit`.
        kind: As for `paid_tokens`.
        num_tokens: Rows at most.

    Returns:
        The table; texts of tokens are escaped, spaces and control characters visible.
    """
    rows = [
        [visible(row.token[:40], spaces=True), f"{row.occurrences:,}", f"{row.credit:.4g}", f"{100 * row.share:.2f} %"]
        + [f"{row.mean:.4g}"]
        for row in paid_tokens(credit, kind)[:num_tokens].rename(columns={"count": "occurrences"}).itertuples()
    ]
    return Table("", ["Token", "Occurrences", "Credit", "Share", "Mean"], rows).markdown()


def credit_sums(credit: Credit) -> list[dict[str, Any]]:
    """Return the credit of each step's recorded rollouts, and that of the whole batch.

    Args:
        credit: Of `read_credit`.

    Returns:
        One dict per step: "step"; "rollouts", recorded ones; "credit", the summed abs(advantage) after calibration of
        those that MINER rules; "expected", tau_pos * scale of the whole batch, or None where the method has none;
        "complete", whether the batch was recorded whole, so that the two must agree up to float32 rounding.
    """
    table = credit.table
    is_ruled = has_list(table, "weights") | (table["kind"].to_numpy() == "PH")
    rows = np.repeat(np.arange(table.num_rows), token_counts(table))
    per_row = np.bincount(rows, weights=absolute(token_numbers(table, "advantages")), minlength=table.num_rows)
    steps, sums = table["step"].to_numpy(), []
    for step, meta in credit.metas.items():
        is_here = steps == step
        recorded = int(is_here.sum())
        try:
            expected = float(meta["tau_pos"] * meta["scale"])
        except (KeyError, TypeError):  # a method without them
            expected = None
        sums.append(
            {
                "step": step,
                "rollouts": recorded,
                "credit": float(per_row[is_here & is_ruled].sum()),
                "expected": expected,
                "complete": recorded == meta.get("rollouts_in_batch"),
            }
        )
    return sums


def prompts_of(table: Any) -> "DataFrame":
    """Return a row for each prompt of the `table` of a `Credit`.

    Columns: "step", "group", "kind"; "first", its first row, and "size", its rollouts; "tokens"; "reward", their mean,
    NaN where none is known; "paid", rollouts with an advantage; "credit", the sum and "largest", the largest
    abs(advantage) of a token.
    """
    import pandas as pd

    rows = table.select(["step", "group", "kind", "reward"]).to_pandas()
    rows["tokens"] = token_counts(table)
    paid = pd.Series(absolute(token_numbers(table, "advantages")))
    of_row = paid.groupby(np.repeat(np.arange(table.num_rows), rows["tokens"]))
    rows["credit"], rows["largest"] = (of_row.agg(what).reindex(rows.index, fill_value=0.0) for what in ("sum", "max"))
    starts, sizes = groups_of(table)
    rows["prompt"] = np.repeat(np.arange(len(starts)), sizes)
    rows["paid"], rows["reward"] = rows["largest"] > 0, rows["reward"].astype(float)
    first = rows.groupby("prompt")[["step", "group", "kind"]].first()
    sums = rows.groupby("prompt")[["tokens", "paid", "credit"]].sum()
    return first.join(sums).assign(
        first=starts, size=sizes,
        reward=rows.groupby("prompt")["reward"].mean(), largest=rows.groupby("prompt")["largest"].max(),
    )  # fmt: skip


def absolute(advantages: np.ndarray) -> np.ndarray:
    """Return abs(advantages) in float64, 0 where it is not finite."""
    return np.where(np.isfinite(advantages), np.abs(advantages.astype(np.float64)), 0.0)


def draw_paid_tokens(
    run: str | Path | Credit, path: str | Path | None = None, *, kind: str = "PH", num_tokens: int = 20
) -> Any:
    """Draw the best paid tokens as bars: their share of the credit, and the credit of one occurrence.

    Args:
        run: Run folder, or what `read_credit` made of it.
        path: A .png or .svg file to write; None: write nothing.
        kind: As for `paid_tokens`.
        num_tokens: Bars at most.

    Returns:
        The matplotlib figure.
    """
    credit = run if isinstance(run, Credit) else read_credit(run)
    rows = paid_tokens(credit, kind).query("credit > 0")[:num_tokens]
    size = (9, 1.3 + 0.27 * max(len(rows), 4))
    figure, (shares, means) = new_figure(2, size=size, sharey=True)
    figure.suptitle(f"Which tokens are paid ({kind} prompts, {_in_font(visible(credit.name[:60]))})", parse_math=False)
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
        italics: a tool's, not the model's. Darkness is
        abs(advantage), in units of the largest of the prompt's rollouts; the numbers of a token show on hover.

    Raises:
        ValueError: There is no such record; the message says which there are.
    """
    prompts = prompts_of(credit.table)
    of_step = prompts[prompts["step"] == step]
    found = of_step[of_step["group"] == group]
    if not len(found):
        here = ", ".join(map(str, of_step["group"][:20])) or f"none; steps: {', '.join(map(str, credit.metas))}"
        raise ValueError(f"step {step} must have a record of group {group}: it has {here}.")
    prompt = found.iloc[0]
    rows = {row["rollout"]: row for row in credit.table.slice(prompt["first"], prompt["size"]).to_pylist()}
    if rollout not in rows:
        raise ValueError(f"group {group} of step {step} must have rollout {rollout}: it has {[*rows]}.")
    one, largest = rows[rollout], prompt["largest"]
    texts = one["tokens"] or []
    columns = [one[name] or [None] * len(texts) for name in _NUMBERS]
    spans = [_span(largest, *token) for token in zip(texts, one["token_ids"] or [], *columns, strict=True)]
    facts = [f"step {step}, prompt {group}, rollout {rollout}", one["kind"], f"reward {_shown(one['reward'])}"]
    facts += [f"NLL {_shown(one['nll'])}", f"advantage {_shown(one['advantage'])}", f"{one['length']} tokens"]
    return (
        '<div style="background:#fff;color:#111;border:1px solid #bbb;border-radius:6px;padding:10px 14px;'
        'font:14px/1.7 ui-monospace,monospace;unicode-bidi:isolate">'
        f'<div style="font:13px sans-serif;color:#444;margin-bottom:6px">{html.escape(" · ".join(facts))}<br>'
        f"blue: pushed up; orange, underlined: pushed down; darkest: {largest:.4g}</div>"
        f'<div style="white-space:pre-wrap;overflow-wrap:anywhere">{"".join(spans)}</div></div>'
    )


def _span(largest: float, text: str | None, token_id: int, logp: Any, weight: Any, before: Any, after: Any) -> str:
    shown, style = visible(text or "", spaces=True), "border-radius:2px"
    titles = [f"token {shown}  id {token_id}"]
    if after is None:
        titles.append("not the model's token, but a tool's")
        style += ";color:#666;font-style:italic"
    else:
        probability = None if logp is None else float(np.exp(np.minimum(logp, 0)))
        titles.append(f"log-prob {_shown(logp)} (probability {_shown(probability)})")
        credited = "none" if weight is None else _shown(weight)
        titles.append(f"weight {credited}, advantage {_shown(before)} before calibration, {_shown(after)} after")
    if after and not np.isnan(after) and largest > 0:  # black text stays readable on the deepest color
        opacity = 0.6 * min(1.0, abs(after) / largest)
        style += f";background:rgba({UP if after > 0 else DOWN},{opacity:.3f})"
        style += "" if after > 0 else ";text-decoration:underline"
    title = html.escape("\n".join(titles))
    return f'<span style="{style}" title="{title}">{html.escape(visible(text or ""))}</span>'


def _shown(number: float | None) -> str:
    """Return 4 significant digits."""
    return "not known" if number is None else f"{number:.4g}"


def _in_font(text: str) -> str:
    """Return text that matplotlib's own font can show; other characters by their code, as fonts differ."""
    from matplotlib.font_manager import findfont, get_font

    has = get_font(findfont("DejaVu Sans")).get_char_index
    return "".join(c if has(ord(c)) else f"\\u{ord(c):04x}" for c in text)
