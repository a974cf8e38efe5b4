"""Curves over the steps of training runs: `draw_chart("rollouts", ["runs/grpo", "runs/miner"])`.

Runs of one method, that is with the same settings but for the seed, become one line: their mean, with a band from the
smallest to the largest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..runs.history import RunHistory, read_run
from ..text import for_picture
from .charts import COMPLETIONS, HELD_OUT, UNSCORABLE, Chart, Panel, charts_of
from .completions import Completions, completions_history
from .figures import (
    COLUMNS,
    add_legend,
    finish_axes,
    marked_points,
    mean_line,
    new_figure,
    save,
    scale_by_two,
    style,
)
from .frame import SAMPLES, Metrics, read_metrics
from .grouping import Method, group_methods, highlighted_labels, methods_with
from .material import read_material, tell_apart
from .pages import Plan

Runs = str | Path | RunHistory | Sequence[str | Path | RunHistory]

MOST_BANDS = 6  # methods; beyond, bands hide the lines
_TRAINING = {  # of the picture of one run: a panel, and its metrics with their labels
    Panel("reward", "Reward", "mean reward"): {"reward": "mean reward"},
    Panel("prompts", "Kinds of prompt", "share of prompts", share=True): {
        "groups/nh": "all wrong (NH)",
        "groups/ph": "all right (PH)",
        "groups/he": "mixed (HE)",
        UNSCORABLE: "unscorable",
    },
    Panel("rollouts", "Rollouts with a gradient", "share of rollouts", share=True): {
        "rollouts/used": "in this run",
        "rollouts/recovered": "recovered from PH",
        "rollouts/grpo": "under GRPO",
    },
}


def draw_chart(chart: str | Chart, runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """Draw one chart, which Jupyter shows.

    Args:
        chart: reward, prompt_kinds, rollouts, calibration, dose, update, entropy, kl, grad_norm, length, overhead,
            held_out or completions; or a `Chart` of your own.
        runs: A run or several, read or as folders; a folder of `trl-miner compare` is all of its runs.
        path: A .png or .svg file to write; None: write nothing.
        smooth: Logs of a trailing mean over each run; 1: none.

    Returns:
        The matplotlib figure.

    Raises:
        FileNotFoundError: A folder is no run.
        ValueError: There is no such chart, or the path ends otherwise.
    """
    histories = read_runs(runs)
    if isinstance(chart, str):
        charts = charts_of(histories)
        if chart not in charts:
            raise ValueError(f"chart must be one of {', '.join(charts)}: got {chart!r}.")
        histories = [completions_history(run) for run in histories] if chart == COMPLETIONS.name else histories
        chart = charts[chart]
    return save(draw_metrics(chart, read_metrics(group_methods(histories), keys_of([chart])), smooth), path)


def draw_metrics(chart: Chart, metrics: Metrics, smooth: int = 1) -> Any:
    """Draw a chart of metrics that have been read: the figure of all lines over steps, and of scores by K.

    Args:
        chart: The chart.
        metrics: Of the runs, read for this chart's keys at least.
        smooth: Logs of a trailing mean over each run; 1: none.

    Returns:
        The matplotlib figure.
    """
    methods, is_by_k = metrics.methods, metrics.axis == SAMPLES
    shown = [panel for panel in chart.panels if not panel.rare or metrics.occurs(panel.key)] or chart.panels[:1]
    figure, panels = new_figure(len(shown), len(methods))
    for axes, panel in zip(panels, shown, strict=True):
        _draw_panel(axes, panel.key, metrics, smooth, len(shown) * len(methods))
        for method in methods if panel.target else ():
            dosed = [run for run in method.runs if metrics.has(panel.key, run)]
            for target in set(metrics.of(dosed, panel.target, "last")):
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
    front = _front(metrics)
    for method in metrics.methods:
        if method.label not in by_method or not by_method[method.label]["value"].notna().any():
            continue
        line, (color, dash) = mean_line(by_method[method.label], smooth, lines), style(method.style_index)
        is_behind = bool(front) and method.label not in front
        has_band = len(metrics.methods) <= MOST_BANDS or method.label in front
        if has_band and (line["high"] > line["low"]).any():
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


def plan_chart(chart: Chart, metrics: Metrics, smooth: int = 1, *, has_means: bool = False) -> Plan:
    """Return the picture of a chart, which is yet to be drawn, with a caption that tells means, bands and smoothing.

    Args:
        chart: The chart.
        metrics: Of the runs, read for this chart's keys at least.
        smooth: Logs of a trailing mean over each run; 1: none.
        has_means: Whether lines are means although each method has one run.

    Returns:
        The picture, drawn when it is asked for.
    """
    caption = [chart.caption]
    if has_means or any(len(method.runs) > 1 for method in metrics.methods):
        caption.append("A line of several runs is their mean, its band from the smallest to the largest.")
    if len(metrics.methods) > MOST_BANDS:
        front = " and ".join(_front(metrics))
        what = f"only {front} have bands" if front else "there are no bands"
        caption.append(f"Above {MOST_BANDS} methods {what}: give fewer runs to see them.")
    logs = metrics.rows.groupby(["metric", "method"], observed=True)["step"].nunique()
    if len(logs) and logs.max() > 2 * COLUMNS:
        caption.append("Neighbouring logs are one point, their mean, with a band from the smallest to the largest.")
    if smooth > 1:
        caption.append(f"Trailing mean over {smooth} logs of each run.")
    return Plan(chart.name, chart.title, " ".join(caption), lambda: draw_metrics(chart, metrics, smooth))


def _front(metrics: Metrics) -> list[str]:
    return highlighted_labels([method for method in metrics.methods if method.runs])


def training_plans(metrics: Metrics, completions: Mapping[str, Completions], smooth: int) -> list[Plan]:
    """Return the charts of which at least one run has something; scores and completions are never smoothed.

    Args:
        metrics: Of all runs.
        completions: Of the runs that have some, by run folder.
        smooth: Logs of a trailing mean over each run; 1: none.

    Returns:
        A picture for each chart, yet to be drawn.
    """
    runs = [run for method in metrics.methods for run in method.runs]
    plans = []
    for chart in charts_of(runs).values():
        own = metrics
        if chart is COMPLETIONS:
            own = read_metrics(_of_completions(metrics.methods, completions), keys_of([chart]))
        if any(has_chart(chart, own, run) for method in own.methods for run in method.runs):
            plans.append(plan_chart(chart, own, 1 if chart.name in (HELD_OUT, COMPLETIONS.name) else smooth))
    return plans


def _of_completions(methods: Sequence[Method], completions: Mapping[str, Completions]) -> list[Method]:
    """Return the methods with the runs that have completions, whose logs are the measures of these."""
    having = methods_with(methods, completions)
    runs = [[completions_history(run, completions[str(run.folder)]) for run in method.runs] for method in having]
    return [replace(method, runs=own) for method, own in zip(having, runs, strict=True)]


def keys_of(charts: Iterable[Chart]) -> list[str]:
    """Return the metrics that charts need."""
    return [key for chart in charts for panel in chart.panels for key in (panel.key, panel.target) if key]


def has_chart(chart: Chart, metrics: Metrics, run: RunHistory) -> bool:
    """Return whether a run recorded anything of a chart, by the `metrics` of several runs."""
    return bool(run.scores) if chart.name == HELD_OUT else any(metrics.has(panel.key, run) for panel in chart.panels)


def read_runs(runs: Runs) -> list[RunHistory]:
    """Return the histories of one folder or several `runs`; a folder of `trl-miner compare` is all of its runs."""
    histories: list[RunHistory] = []
    for run in [runs] if isinstance(runs, str | Path | RunHistory) else runs:
        if isinstance(run, RunHistory):
            histories.append(run)
        else:
            histories += read_material([run]).runs or [read_run(run)]
    return tell_apart(histories)


def draw_training(run: str | Path, path: str | Path | None = None) -> Path:
    """Draw reward, kinds of prompt and used rollouts of a run folder as one picture. Return its path.

    Args:
        run: Output folder of a run.
        path: The file to write; default: `training.png` in the run folder.
    """
    history = read_run(run)
    if not history.logs:
        raise ValueError(f"{run} has no logged training step. Set logging_steps below the number of steps.")
    path = Path(run) / "training.png" if path is None else Path(path)
    labels = {metric: label for series in _TRAINING.values() for metric, label in series.items()}
    panels = {metric: panel.key for panel, series in _TRAINING.items() for metric in series}
    metrics = read_metrics([Method("", [history])], labels)
    if not metrics.occurs(UNSCORABLE):
        del labels[UNSCORABLE]
    rows = metrics.rows[metrics.rows["metric"].isin([*labels])]
    rows = rows.assign(method=rows["metric"].map(labels), metric=rows["metric"].map(panels))
    methods = [Method(label, [], index) for index, label in enumerate(labels.values())]
    chart = Chart("training", "Training", tuple(_TRAINING), "")
    save(draw_metrics(chart, Metrics(methods, rows, metrics.axis)), path)
    return path
