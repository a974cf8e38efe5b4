"""The figure of every picture: panels, lines with bands, one legend; written whole as PNG and SVG.

matplotlib's object interface: no display, no pyplot, no state that outlives a call.
"""

import functools
import io
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runs.files import write_whole
from ..text import for_picture

if TYPE_CHECKING:
    from pandas import DataFrame

    from .grouping import Method

INK, PAPER, GRID = "#1b1f24", "#ffffff", "#c9ced6"
# Okabe-Ito, told apart by color-blind readers. 7 colors, 4 dashes and 5 markers repeat after 140 methods.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", INK)
_DASHES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v")
MOST_BANDS = 6  # beyond, bands hide the lines
_MARKED = 12  # of a line with so many points each has a marker
_POINTS = 12_000  # of one figure: some 200 kB as SVG
_COLUMNS = 600  # more than the pixels of a panel show
_WIDTHS = {1: 6.6, 2: 10.0, 3: 13.0}  # inches, by panels in a row
_LEGEND_COLUMNS = {1: 3, 2: 4}  # by panels in a row
_NUMBER = re.compile(r"(\d\.\d{2})\d+")


@dataclass(frozen=True)
class Line:
    """One line of a picture: its name in the legend, its place in the order of styles, x ascending, y with NaN for
    gaps, and the edges of its band, if it has one."""

    label: str
    place: int
    x: Any
    y: Any
    low: Any = None
    high: Any = None


def metric_lines(rows: "DataFrame", metric: str, methods: Sequence["Method"], smooth: int = 1) -> list[Line]:
    """Return a line for each method that has known values of a metric in tidy `rows`: see `mean_line`."""
    own = rows[rows["metric"] == metric]
    by_method = dict(tuple(own.groupby("method", observed=True, sort=False)))
    lines = [
        mean_line(method, by_method[method.label].groupby("run", observed=True, sort=False), smooth)
        for method in methods
        if method.label in by_method
    ]
    return [line for line in lines if line is not None]


def mean_line(method: "Method", runs: Iterable[tuple[str, "DataFrame"]], smooth: int = 1) -> Line | None:
    """Return the mean over the runs of a method, with a band from the smallest to the largest; None: no known value.

    Runs that logged at different steps are interpolated between their own; at a step that only some have reached the
    mean is over those. `smooth` points make a trailing mean of each run. One run has the band of its columns "low" and
    "high", if it has these.
    """
    curves = [
        (own["step"].to_numpy(), moving_mean(own["value"], smooth), own)
        for _, own in runs
        if np.isfinite(own["value"]).any()
    ]
    if not curves:
        return None
    if len(curves) == 1:
        x, y, own = curves[0]
        has_band = "low" in own and own["low"].notna().all()
        return Line(method.label, method.place, x, y, *([own["low"], own["high"]] if has_band else []))
    x = np.unique(np.concatenate([own for own, _, _ in curves]))
    values = np.stack([np.interp(x, steps, y, left=math.nan, right=math.nan) for steps, y, _ in curves])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step at which no run has a value is a gap
        edges = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
        return Line(method.label, method.place, x, np.nanmean(values, axis=0), *edges)


def moving_mean(values: Any, width: int) -> Any:
    """Return the trailing mean of up to `width` values, without those that are no number, which are gaps."""
    import pandas as pd

    known = pd.Series(values, dtype=float).where(np.isfinite(values))
    return (known.rolling(width, min_periods=1).mean().where(known.notna()) if width > 1 else known).to_numpy()


def thin(x: Any, y: Any, columns: int) -> Any:
    """Return the indices to draw: the smallest and the largest y of each of `columns` parts of the x axis, and gaps.

    x ascends; NaN in y is a gap. Points that are at most two for each column are all drawn.
    """
    if len(x) <= 2 * columns:
        return np.arange(len(x))
    width = (x[-1] - x[0]) / columns
    edges = np.searchsorted(x, x[0] + width * np.arange(1, columns))
    column = np.repeat(np.arange(columns), np.diff([0, *edges, len(x)]))
    kept = [np.array([0, len(x) - 1])]
    for heights in (y, -y):  # in each column the first of the smallest; NaN comes last, and first where all are
        order = np.lexsort((heights, column))
        kept.append(order[np.diff(column[order], prepend=-1) > 0])
    return np.unique(np.concatenate(kept))


def draw_lines(
    axes: Any, lines: Sequence[Line], *, panels: int = 1, bands: bool = True, front: Collection[str] = ()
) -> None:
    """Put lines on axes, told apart by color and dash, and by markers at points that are few or alone.

    Lines that coincide stay visible: gaps in dashes show what lies below, and of those with the same dash a later one
    is thinner. Those with a label in `front` stand out, and have bands in any case. The panels of a figure share its
    number of points.
    """
    columns = max(12, min(_COLUMNS, _POINTS // (2 * max(1, len(lines)) * panels * (3 if bands else 1))))
    drawn: list[tuple[str, bool]] = []
    for line in lines:
        color, dash, marker = style(line.place)
        is_behind = bool(front) and line.label not in front
        width = (1.2 if is_behind else 2.6) * 0.6 ** min(2, drawn.count((dash, is_behind)))
        drawn.append((dash, is_behind))
        if (bands or line.label in front) and line.low is not None and line.high is not None:
            edges = (np.asarray(own, dtype=float) for own in (line.x, line.low, line.high))
            at, low, high = _thin_band(columns, *edges)
            axes.fill_between(at, low, high, color=color, alpha=0.18, linewidth=0)
        x, y = np.asarray(line.x, dtype=float), np.asarray(line.y, dtype=float)
        shown = thin(x, y, columns)
        marked = _marked(y[shown])
        axes.plot(
            x[shown],
            y[shown],
            dash,
            color=color,
            linewidth=width,
            alpha=0.6 if is_behind else 1.0,
            zorder=2 + 0.1 * _DASHES.index(dash) + (not is_behind) / 2,
            marker=marker if marked else "",
            markersize=4,
            markevery=marked,
            label=for_picture(line.label),
        )


def style(place: int) -> tuple[str, str, str]:
    """Return color, dash and marker of the line at a place."""
    return COLORS[place % 7], _DASHES[place % 4], _MARKERS[place % 5]


def new_figure(
    panels: int,
    legend_entries: int = 0,
    *,
    columns: int | None = None,
    size: tuple[float, float] | None = None,
    **options: Any,
) -> tuple[Any, list[Any]]:
    """Return a figure, which Jupyter shows, and its axes: rows of `columns` panels, with room for a legend below.

    `size` is in inches; `options` are those of `Figure.subplots`.
    """
    columns = min(panels, columns or panels)
    rows = math.ceil(panels / columns)
    legend_rows = math.ceil(legend_entries / _LEGEND_COLUMNS.get(columns, 6)) if legend_entries > 1 else 0
    size = size or (_WIDTHS.get(columns, 13.0), 3.3 * rows + 0.24 * legend_rows)
    figure = _figure_class()(figsize=size, layout="constrained", facecolor=PAPER)
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


def finish_axes(
    axes: Any,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    share: bool = False,
    percent: bool = False,
    log: bool = False,
    steps: bool = False,
) -> None:
    """Set titles and units; where nothing was drawn, the panel says so.

    With `share` the vertical axis is from 0 to 1, with `percent` it is shown as percent, with `log` it is logarithmic,
    where a value is above 0. With `steps` the horizontal one has whole numbers.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

    if share:
        axes.set_ylim(-0.03, 1.03)
    if steps:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    if log and axes.has_data() and axes.dataLim.y1 > 0:
        axes.set_yscale("log", nonpositive="mask")
        low, high = axes.get_ylim()
        if high < 60 * low:  # less than two decades hold too few powers of ten to read a value by
            axes.yaxis.set_major_locator(MaxNLocator(6) if high < 4 * low else LogLocator(subs=(1, 2, 3, 5)))
            axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_title(title, color=INK, fontsize=11)
    axes.set_xlabel(xlabel, color=INK)
    axes.set_ylabel(ylabel, color=INK)
    if not axes.has_data():
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color=INK)
        axes.set(xticks=[], yticks=[])


def scale_by_two(axes: Any, largest: int) -> None:
    """Make the x-axis logarithmic, base 2, with its powers up to `largest`, and that where there is room."""
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    ticks = [2**power for power in range(largest.bit_length())]
    ticks += [largest] if largest > 1.3 * ticks[-1] else []
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())


def add_legend(figure: Any, panels: Sequence[Any], **options: Any) -> None:
    """Add one legend for all panels, below them, where no line can run through it. One line needs none."""
    entries: dict[tuple[str, int], Any] = {}
    for axes in panels:
        seen: list[str] = []
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault((label, seen.count(label)), handle)  # two long names may be cut to the same
            seen.append(label)
    if len(entries) > 1:
        columns = _LEGEND_COLUMNS.get(len(panels), 6)
        options = {"loc": "outside lower center", "ncols": columns, "handlelength": 3.4} | options
        labels = [label for label, _ in entries]
        figure.legend(list(entries.values()), labels, frameon=False, fontsize="small", labelcolor=INK, **options)


def save(figure: Any, path: str | Path | None) -> Any:
    """Write a figure as its path says, PNG or SVG; None: write nothing. Returns the figure."""
    if path is not None:
        path = Path(path)
        if path.suffix not in (".png", ".svg"):
            raise ValueError(f"A picture must be a .png or a .svg: got {path}.")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, as_svg(figure, path.stem) if path.suffix == ".svg" else [as_png(figure)])
    return figure


def as_png(figure: Any) -> bytes:
    """Return the figure at 130 dots per inch."""
    target = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script that the font lacks
        figure.savefig(target, format="png", dpi=130, metadata={"Software": None})
    return target.getvalue()


def as_svg(figure: Any, name: str) -> str:
    """Return the figure with its text as text, and ids that begin with `name`; equal figures give equal files."""
    import matplotlib

    target = io.StringIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    shorter: Callable[[re.Match[str]], str] = lambda path: _NUMBER.sub(r"\1", path[0]).replace(" \n", "\n")  # noqa: E731
    text = re.sub(r'\b(?:d|points)="[^"]*"', shorter, target.getvalue())
    text = re.sub(r'\bid="', f'id="{name}-', text)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)


def _thin_band(columns: int, x: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
    """Return the hull of a band in each column."""
    if len(x) <= 2 * columns:
        return x, low, high
    edges = np.unique(np.searchsorted(x, np.linspace(x[0], x[-1], columns + 1)[:-1]))
    return x[edges], np.fmin.reduceat(low, edges), np.fmax.reduceat(high, edges)


def _marked(y: Any) -> list[int]:
    """Return all points where they are few, else those between gaps, which no line makes visible; a marker among many
    would look like an event."""
    is_known = np.isfinite(y)
    if is_known.sum() > _MARKED:
        padded = np.concatenate([[False], is_known, [False]])
        is_known &= ~padded[:-2] & ~padded[2:]
    places: list[int] = np.flatnonzero(is_known).tolist()
    return places


@functools.cache
def _figure_class() -> Any:
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that Jupyter shows without pyplot."""

        _repr_png_ = as_png

    return Picture
