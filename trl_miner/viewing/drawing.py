"""A chart of tidy metrics as a figure, a line for each method, with a band, in each panel; and as part of a report."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..text import for_picture
from .charts import Chart, charts_of
from .figures import add_legend, finish_axes, new_figure, scale_by_two, style
from .frame import SAMPLES, Metrics
from .pages import Picture

if TYPE_CHECKING:
    from pandas import DataFrame

_FEW = 12  # a line of at most so many points has a marker at each
_COLUMNS = 300  # of a line at most, which a panel can show
_COLUMNS_OF_ALL = 2500  # of all lines of a figure together: some 200 kB as SVG
_MOST_BANDS = 6  # methods; beyond, bands hide the lines
_FRONT = ("grpo", "miner")  # among many methods these stand out


def mean_line(rows: "DataFrame", lines: int = 1) -> "DataFrame":
    """Return the mean over the runs of a method by step, with the smallest and the largest value.

    Args:
        rows: Tidy rows of one metric and one method; a band of their own are columns "low" and "high".
        lines: Lines of the figure, which share its points: neighbouring steps are put together where there are many.

    Returns:
        Columns "mean", "low" and "high" by ascending step; NaN is a gap.
    """
    low, high = ("low", "high") if "low" in rows else ("value", "value")
    line = rows.groupby("step").agg(mean=("value", "mean"), low=(low, "min"), high=(high, "max"))
    columns = max(12, min(_COLUMNS, _COLUMNS_OF_ALL // max(1, lines)))
    if len(line) > 2 * columns:
        first, last = line.index[0], line.index[-1]
        column = ((line.index - first) * columns // (last - first)).astype(int)
        parts = line.assign(step=line.index).groupby(column)
        line = parts.agg({"step": "mean", "mean": "mean", "low": "min", "high": "max"}).set_index("step")
    return line


def draw_metrics(chart: Chart, metrics: Metrics) -> Any:
    """Return the figure of a chart, of `metrics` read for its keys."""
    is_by_k = metrics.axis == SAMPLES
    shown = [panel for panel in chart.panels if not panel.rare or metrics.occurs(panel.key)] or chart.panels[:1]
    figure, panels = new_figure(len(shown), len(metrics.methods))
    for axes, panel in zip(panels, shown, strict=True):
        _draw_panel(axes, panel.key, metrics, len(shown) * len(metrics.methods))
        if is_by_k and axes.has_data():
            scale_by_two(axes)
        finish_axes(axes, panel, metrics.axis, steps=not is_by_k)
    add_legend(figure, panels)
    return figure


def _draw_panel(axes: Any, metric: str, metrics: Metrics, lines: int) -> None:
    """Draw a line for each method that has the metric, of all `lines` of the figure."""
    own = metrics.rows[metrics.rows["metric"] == metric]
    by_method = dict(tuple(own.groupby("method", observed=True, sort=False)))
    are_many = len(metrics.methods) > _MOST_BANDS
    has_front = are_many and not {*_FRONT}.isdisjoint(method.label for method in metrics.methods)
    for method in metrics.methods:
        if method.label not in by_method or not by_method[method.label]["value"].notna().any():
            continue
        line, (color, dash) = mean_line(by_method[method.label], lines), style(method.style_index)
        is_behind = has_front and method.label not in _FRONT
        if (not are_many or method.label in _FRONT) and (line["high"] > line["low"]).any():
            axes.fill_between(line.index, line["low"], line["high"], color=color, alpha=0.18, linewidth=0)
        marked = _marked_points(line["mean"])
        looks: dict[str, Any] = (
            {"linewidth": 1.2, "alpha": 0.6, "zorder": 2} if is_behind else {"linewidth": 2.2, "zorder": 3}
        )
        looks |= {"marker": "o", "markersize": 4, "markevery": marked} if marked else {}
        axes.plot(line.index, line["mean"], dash, color=color, label=for_picture(method.label), **looks)


def _marked_points(y: Any) -> list[int]:
    """Return all points where they are few, else those between gaps, which no line makes visible."""
    is_known = np.isfinite(y)
    if is_known.sum() > _FEW:
        padded = np.concatenate([[False], is_known, [False]])
        is_known &= ~padded[:-2] & ~padded[2:]
    places: list[int] = np.flatnonzero(is_known).tolist()
    return places


def picture_of(chart: Chart, metrics: Metrics) -> Picture:
    """Return a chart as part of a report, with a caption that tells means and bands."""
    caption = [chart.caption]
    if any(len(method.runs) > 1 for method in metrics.methods):
        caption.append("A line of several runs is their mean, its band from the smallest to the largest.")
    if len(metrics.methods) > _MOST_BANDS:
        front = " and ".join(_FRONT)
        caption.append(f"Above {_MOST_BANDS} methods only {front} have bands: give fewer runs to see others.")
    keys = keys_of([chart])
    if max((own["count"] for (key, _), own in metrics.summary.items() if key in keys), default=0) > 2 * _COLUMNS:
        caption.append("Neighbouring logs are one point, their mean, with a band from the smallest to the largest.")
    return Picture(chart.name, chart.title, " ".join(caption), draw_metrics(chart, metrics))


def training_pictures(metrics: Metrics) -> list[Picture]:
    """Return the pictures of the charts of which at least one run has something."""
    charts = charts_of([run for method in metrics.methods for run in method.runs]).values()
    return [picture_of(chart, metrics) for chart in charts if metrics.has_any(chart)]


def keys_of(charts: Iterable[Chart]) -> list[str]:
    """Return the metrics that charts need."""
    return [panel.key for chart in charts for panel in chart.panels]
