"""Pictures of one batch for the notebooks: the tensors of the method, cell by cell, and the tokens
of an answer.

# N = P*G rollouts, rows of one prompt adjacent; T padded completion tokens
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trl_miner.prompt_kinds import PromptKind
from trl_miner.viewing.figures import new_figure

# Okabe-Ito colors, distinguishable for color-blind readers; the kind is written beside each group
# as well.
KIND_COLORS = dict(
    zip(
        (kind.value for kind in PromptKind),
        ("#009E73", "#E69F00", "#D55E00", "#999999"),
        strict=True,
    )
)


def kind_names(kinds: Any) -> list[str]:
    """Return "PH", "HE", "NH" or "unscorable" for each rollout, of `GroupKinds` such as
    `MinerAdvantages.kinds`."""
    flags = {name: getattr(kinds, f"is_{name.lower()}_N").tolist() for name in KIND_COLORS}
    return [next(name for name in KIND_COLORS if flags[name][row]) for row in range(len(flags["PH"]))]


def draw_tokens(
    values_NT: Any,
    mask_NT: Any,
    tokens: Sequence[Sequence[str]],
    *,
    kinds: Sequence[str],
    num_generations: int,
    title: str,
    form: str = "{:.2f}",
) -> Any:
    """Draw a cell with each token and its number: blue where it is positive, orange where negative;
    padding is gray.

    Args:
        values_NT: (N, T), in any unit.
        mask_NT: (N, T), non-zero where a token counts.
        tokens: N lists of token texts, of at most T each.
        kinds: The kind of each rollout, of `kind_names`.
        num_generations: G, rollouts per prompt.
        title: The title, with the unit of the numbers.
        form: How a number is written.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.colors import LinearSegmentedColormap

    values, mask = np.asarray(values_NT, dtype=float), np.asarray(mask_NT, dtype=bool)
    if len(tokens) != len(values):
        raise ValueError(f"tokens must have a list for each rollout: got {len(tokens)} for {len(values)} rollouts.")
    num_rows, num_columns = values.shape
    figure, (axes,) = new_figure(1, size=(9.2, 0.34 * num_rows + 0.8))
    largest = np.abs(values[mask]).max(initial=0.0) or 1.0
    # No color at its darkest: black text stays readable on all of them.
    shades = LinearSegmentedColormap.from_list("credit", ["#F0A884", "#FFFFFF", "#86BBDD"])
    axes.set_facecolor("#EEEEEE")
    axes.grid(visible=False)
    shown = np.where(mask, values / largest, np.nan)
    axes.pcolormesh(shown, cmap=shades, vmin=-1, vmax=1, edgecolors="#DDDDDD", linewidth=0.5)
    for row, column in zip(*mask.nonzero(), strict=True):
        text, value = tokens[row][column].strip() or "␣", values[row, column]
        axes.text(
            column + 0.06,
            row + 0.55,
            text,
            va="center",
            fontsize=8,
            color="#555555",
            parse_math=False,
        )
        number, color = (form.format(value), "#000000") if value else ("0", "#555555")
        axes.text(column + 0.94, row + 0.55, number, va="center", ha="right", fontsize=9, color=color)
    places = [(kind, *divmod(row, num_generations)) for row, kind in enumerate(kinds)]
    labels = [f"prompt {prompt + 1}, {kind}   1" if at == 0 else str(at + 1) for kind, prompt, at in places]
    axes.set_yticks([row + 0.5 for row in range(num_rows)], labels)
    for label, kind in zip(axes.get_yticklabels(), kinds, strict=True):
        label.set_color(KIND_COLORS[kind])
    for row in range(num_generations, num_rows, num_generations):
        axes.axhline(row, color="#333333", linewidth=1.2)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(
        title=title,
        xlabel="token",
        xticks=np.arange(num_columns) + 0.5,
        xticklabels=range(1, num_columns + 1),
    )
    axes.invert_yaxis()
    return figure


def draw_by_rollout(
    series: Mapping[str, Any],
    *,
    kinds: Sequence[str],
    num_generations: int,
    ylabel: str,
    title: str,
    form: str = "{:.2f}",
) -> Any:
    """Draw a bar for every rollout, groups side by side; the arguments are those of `draw_tokens`
    but for two.

    Args:
        series: By name, (N,) numbers in one unit; a panel each, one below the other. NaN: no bar.
        ylabel: The unit.

    Returns:
        A matplotlib figure.
    """
    places = [row + row // num_generations for row in range(len(kinds))]
    figure, panels = new_figure(len(series), columns=1, size=(9.2, 1.7 * len(series) + 0.6), sharex=True)
    for axes, (name, values_N) in zip(panels, series.items(), strict=True):
        values = np.nan_to_num(np.asarray(values_N, dtype=float))
        bars = axes.bar(places, values, color=[KIND_COLORS[kind] for kind in kinds], width=0.8)
        axes.bar_label(bars, [form.format(value) if value else "0" for value in values], fontsize=8, padding=1)
        axes.axhline(0, color="#333333", linewidth=0.8)
        axes.margins(y=0.2)
        axes.set_ylabel(ylabel)
        axes.set_title(name, fontsize=10, loc="left")
    starts = range(0, len(kinds), num_generations)
    middles = [places[start] + (num_generations - 1) / 2 for start in starts]
    panels[-1].set_xticks(middles, [f"prompt {start // num_generations + 1}, {kinds[start]}" for start in starts])
    figure.suptitle(title)
    return figure


def shaded(answer: Any, largest: float) -> Any:
    """Return an answer for IPython to show: blue where a token's advantage is positive, orange
    where it is negative.

    Args:
        answer: Has `tokens` and their `advantages`, as a row of `read_credit(...).table` has.
        largest: The absolute advantage that has the deepest color.
    """
    from IPython.display import HTML

    spans = []
    for token, advantage in zip(answer.tokens, answer.advantages, strict=True):
        color, depth = "0,114,178" if advantage > 0 else "230,159,0", 0.6 * abs(advantage) / largest
        style, title = f"background:rgba({color},{depth:.3f})", f"advantage {advantage:.4g}"
        spans.append(f'<span style="{style}" title="{title}">{html.escape(token)}</span>')
    return HTML(f'<div style="white-space:pre-wrap">{"".join(spans)}</div>')
