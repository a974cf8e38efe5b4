"""Pictures of one batch for the notebooks: each token with its number.

# N = P*G completions, rows of one prompt adjacent; T padded completion tokens
"""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np


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
    """Return a picture with a cell for each token and its number: blue where it is positive,
    orange where negative; padding is gray.

    Args:
        values_NT: (N, T), in any unit.
        mask_NT: (N, T), non-zero where a token counts.
        tokens: N lists of token texts, of at most T each.
        kinds: P kinds of prompts, such as "mixed".
        num_generations: G, completions per prompt.
        title: The title, with the unit of the numbers.
        form: How a number is written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from PIL import Image

    values, mask = np.asarray(values_NT, dtype=float), np.asarray(mask_NT, dtype=bool)
    num_rows, num_columns = values.shape
    figure = Figure(figsize=(9.2, 0.34 * num_rows + 0.8), layout="constrained")
    axes = figure.add_subplot(facecolor="#EEEEEE", title=title, xlabel="token")
    # No color at its darkest: black text stays readable on all of them.
    shades = LinearSegmentedColormap.from_list("credit", ["#F0A884", "#FFFFFF", "#86BBDD"])
    largest = np.abs(values[mask]).max(initial=0.0) or 1.0
    shown = np.where(mask, values / largest, np.nan)
    axes.pcolormesh(shown, cmap=shades, vmin=-1, vmax=1, edgecolors="#DDDDDD", linewidth=0.5)
    for row, column in zip(*mask.nonzero(), strict=True):
        value, place = values[row, column], row + 0.55
        number = form.format(value) if value else "0"
        axes.text(column + 0.06, place, tokens[row][column], va="center", fontsize=8, color="#555")
        axes.text(column + 0.94, place, number, va="center", ha="right", fontsize=9)
    labels = [str(row % num_generations + 1) for row in range(num_rows)]
    for prompt, kind in enumerate(kinds):
        labels[prompt * num_generations] = f"prompt {prompt + 1}, {kind}   1"
        axes.axhline(prompt * num_generations, color="#333", linewidth=1.2)
    axes.set_yticks(np.arange(num_rows) + 0.5, labels)
    axes.set_xticks(np.arange(num_columns) + 0.5, range(1, num_columns + 1))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.invert_yaxis()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    return picture.quantize(64)  # with fewer colors a notebook stays small


def shaded(tokens: Sequence[str], advantages: Sequence[float], largest: float) -> str:
    """Return a completion as HTML: blue where a token's advantage is positive, orange where it is
    negative, and darkest at `largest`."""
    spans = []
    for token, advantage in zip(tokens, advantages, strict=True):
        color, depth = "0,114,178" if advantage > 0 else "230,159,0", 0.6 * abs(advantage) / largest
        style, title = f"background:rgba({color},{depth:.2f})", f"advantage {advantage:.4g}"
        spans.append(f'<span style="{style}" title="{title}">{html.escape(token)}</span>')
    return f'<div style="white-space:pre-wrap">{"".join(spans)}</div>'
