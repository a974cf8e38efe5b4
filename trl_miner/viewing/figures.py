"""The figure of every picture: panels in one style, one legend; written whole as PNG and SVG.

matplotlib's object interface: no display, no pyplot, no state that outlives a call.
"""

import io
import math
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..runs.files import write_whole
from .charts import Panel

INK, PAPER, GRID = "#1b1f24", "#ffffff", "#c9ced6"
# Okabe-Ito, distinguishable for color-blind readers
COLORS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", INK)
_DASHES = ("-", "--", "-.", ":")
_WIDTHS = {1: 6.6, 2: 10.0, 3: 13.0}  # inches, by panels in a row
_LEGEND_COLUMNS = {1: 3, 2: 4, 3: 6}  # by panels in a row


def style(index: int) -> tuple[str, str]:
    """Return color and dash of a line: with 7 colors and 4 dashes, 28 lines differ."""
    return COLORS[index % 7], _DASHES[index % 4]


def new_figure(
    panels: int,
    legend_entries: int = 0,
    *,
    columns: int | None = None,
    size: tuple[float, float] | None = None,
    **options: Any,
) -> tuple[Any, list[Any]]:
    """Return a figure, which Jupyter shows, and its axes: rows of `columns` panels, else at most 3;
    a legend has room.

    `size` is in inches; `options` are those of `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    columns = columns or (2 if panels == 4 else min(panels, 3))
    rows = math.ceil(panels / columns)
    legend_rows = math.ceil(legend_entries / _LEGEND_COLUMNS[columns]) if legend_entries > 1 else 0
    size = size or (_WIDTHS[columns], 3.3 * rows + 0.24 * legend_rows)
    figure: Any = Figure(figsize=size, layout="constrained", facecolor=PAPER)
    # for Jupyter, without pyplot
    figure._repr_png_ = lambda: _rendered(figure, format="png", dpi=130)
    every = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for axes in every[panels:]:
        axes.remove()
    for axes in every[:panels]:
        axes.set_facecolor(PAPER)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_edgecolor(INK)
        axes.tick_params(which="both", colors=INK)
    return figure, every[:panels]


def finish_axes(axes: Any, panel: Panel, xlabel: str, *, steps: bool = False) -> None:
    """Set titles, units and scales of a panel; where nothing was drawn, it says so.

    With `steps` the horizontal axis has whole numbers. The vertical one is in percent where the
    unit is a share, and logarithmic where the panel is and a value is above 0.
    """
    from matplotlib.ticker import (
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        NullLocator,
        PercentFormatter,
    )

    if panel.share:
        axes.set_ylim(-0.03, 1.03)
    if steps:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    if panel.log and axes.has_data() and axes.dataLim.y1 > 0:
        axes.set_yscale("log", nonpositive="mask")
        low, high = axes.get_ylim()
        if high < 60 * low:  # less than two decades hold too few powers of ten to read a value by
            axes.yaxis.set_major_locator(
                MaxNLocator(6) if high < 4 * low else LogLocator(subs=(1, 2, 3, 5))
            )
            axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if panel.unit.startswith("share"):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_title(panel.title, color=INK, fontsize=11)
    axes.set_xlabel(xlabel, color=INK)
    axes.set_ylabel(panel.unit, color=INK)
    if not axes.has_data():
        axes.text(
            0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color=INK
        )
        axes.set(xticks=[], yticks=[])


def scale_by_two(axes: Any) -> None:
    """Make the x-axis logarithmic, base 2, with its powers, and the largest value where there is
    room."""
    largest = int(axes.dataLim.x1)
    ticks = [2**power for power in range(largest.bit_length())]
    ticks += [largest] if largest > 1.3 * ticks[-1] else []
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, ticks)
    axes.minorticks_off()


def add_legend(figure: Any, panels: Sequence[Any]) -> None:
    """Add one legend for all panels, below them, where no line can run through it. One line needs
    none."""
    entries: dict[str, Any] = {}
    for axes in panels:
        entries |= {
            label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
    if len(entries) > 1:
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=_LEGEND_COLUMNS.get(len(panels), 6),
            handlelength=3.4,
            frameon=False,
            fontsize="small",
            labelcolor=INK,
        )


def save(figure: Any, path: str | Path | None) -> Any:
    """Write a figure in the format that its path ends with; None: write nothing. Returns the
    figure."""
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(Path(path), [_rendered(figure, format=Path(path).suffix[1:] or "png", dpi=130)])
    return figure


def as_svg(figure: Any, name: str) -> str:
    """Return the figure with its text as text, and ids that begin with `name`; equal figures give
    equal files."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        text = _rendered(figure, format="svg", metadata={"Date": None, "Creator": None}).decode()
    text = re.sub(r'\b(?:d|points)="[^"]*"', _with_two_decimals, text)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)


def view_boxes(figure: Any) -> list[str]:
    """Return the view box of each panel and of the legend in the SVG of a figure that was drawn,
    with a margin."""
    height, scale, boxes = 72 * figure.get_figheight(), 72 / figure.dpi, []
    for part in (*figure.axes, *figure.legends):
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # as in `_rendered`
            box = part.get_tightbbox()
        x, y = scale * box.x0 - 4, height - scale * box.y1 - 4
        boxes.append(f"{x:.1f} {y:.1f} {scale * box.width + 8:.1f} {scale * box.height + 8:.1f}")
    return boxes


def _rendered(figure: Any, **options: Any) -> bytes:
    target = io.BytesIO()
    # a name may be in a script that the font lacks
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        figure.savefig(target, **options)
    return target.getvalue()


def _with_two_decimals(path: re.Match[str]) -> str:
    return re.sub(r"(\d\.\d{2})\d+", r"\1", path[0]).replace(" \n", "\n")
