"""A chart of tidy metrics as a figure: a line for each method, with a band, in each panel."""

from collections.abc import Iterable
from typing import Any

from ..runs.history import RunHistory
from ..text import for_picture
from .charts import HELD_OUT, Chart, charts_of
from .figures import COLUMNS, add_legend, finish_axes, marked_points, mean_line, new_figure, scale_by_two, style
from .frame import SAMPLES, Metrics
from .pages import Plan

MOST_BANDS = 6  # methods; beyond, bands hide the lines
_FRONT = ("grpo", "miner")  # among many methods these stand out


def draw_metrics(chart: Chart, metrics: Metrics, smooth: int = 1) -> Any:
    """Return the figure of a chart, of `metrics` read for its keys; `smooth`: logs of a trailing mean."""
    methods, is_by_k = metrics.methods, metrics.axis == SAMPLES
    shown = [panel for panel in chart.panels if not panel.rare or metrics.occurs(panel.key)] or chart.panels[:1]
    figure, panels = new_figure(len(shown), len(methods))
    for axes, panel in zip(panels, shown, strict=True):
        _draw_panel(axes, panel.key, metrics, smooth, len(shown) * len(methods))
        for method in methods if panel.target else ():
            known = [metrics.summary.get((panel.target, run.name)) for run in method.runs]
            for target in {one["last"] for one in known if one}:
                axes.axhline(target, color=style(method.style_index)[0], linestyle=":", linewidth=1.2)
        if is_by_k and axes.has_data():
            scale_by_two(axes, int(axes.dataLim.x1))
        finish_axes(axes, panel, metrics.axis, steps=not is_by_k)
    add_legend(figure, panels)
    return figure


def _draw_panel(axes: Any, metric: str, metrics: Metrics, smooth: int, lines: int) -> None:
    """Draw a line for each method that has the metric, of all `lines` of the figure."""
    own = metrics.rows[metrics.rows["metric"] == metric]
    by_method = dict(tuple(own.groupby("method", observed=True, sort=False)))
    are_many = len(metrics.methods) > MOST_BANDS
    has_front = are_many and not {*_FRONT}.isdisjoint(method.label for method in metrics.methods)
    for method in metrics.methods:
        if method.label not in by_method or not by_method[method.label]["value"].notna().any():
            continue
        line, (color, dash) = mean_line(by_method[method.label], smooth, lines), style(method.style_index)
        is_behind = has_front and method.label not in _FRONT
        if (not are_many or method.label in _FRONT) and (line["high"] > line["low"]).any():
            axes.fill_between(line.index, line["low"], line["high"], color=color, alpha=0.18, linewidth=0)
        marked = marked_points(line["mean"])
        axes.plot(
            line.index,
            line["mean"],
            dash,
            color=color,
            linewidth=1.2 if is_behind else 2.2,
            alpha=0.6 if is_behind else 1.0,
            zorder=2 if is_behind else 3,
            marker="o" if marked else "",
            markersize=4,
            markevery=marked,
            label=for_picture(method.label),
        )


def plan_chart(chart: Chart, metrics: Metrics, smooth: int = 1) -> Plan:
    """Return the picture of a chart, yet to be drawn, with a caption that tells means, bands and smoothing."""
    caption = [chart.caption]
    if any(len(method.runs) > 1 for method in metrics.methods):
        caption.append("A line of several runs is their mean, its band from the smallest to the largest.")
    if len(metrics.methods) > MOST_BANDS:
        front = " and ".join(_FRONT)
        caption.append(f"Above {MOST_BANDS} methods only {front} have bands: give fewer runs to see others.")
    keys = keys_of([chart])
    if max((own["count"] for (key, _), own in metrics.summary.items() if key in keys), default=0) > 2 * COLUMNS:
        caption.append("Neighbouring logs are one point, their mean, with a band from the smallest to the largest.")
    if smooth > 1:
        caption.append(f"Trailing mean over {smooth} logs of each run.")
    return Plan(chart.name, chart.title, " ".join(caption), lambda: draw_metrics(chart, metrics, smooth))


def training_plans(metrics: Metrics, smooth: int) -> list[Plan]:
    """Return the pictures of the charts of which at least one run has something; scores are never smoothed."""
    runs = [run for method in metrics.methods for run in method.runs]
    return [
        plan_chart(chart, metrics, 1 if chart.name == HELD_OUT else smooth)
        for chart in charts_of(runs).values()
        if any(has_chart(chart, metrics, run) for run in runs)
    ]


def keys_of(charts: Iterable[Chart]) -> list[str]:
    """Return the metrics that charts need."""
    return [key for chart in charts for panel in chart.panels for key in (panel.key, panel.target) if key]


def has_chart(chart: Chart, metrics: Metrics, run: RunHistory) -> bool:
    """Return whether a run recorded anything of a chart, by the `metrics` of several runs."""
    return any(metrics.has(panel.key, run) for panel in chart.panels)
