"""Pictures in a call: `draw_chart("rollouts", ["runs/grpo", "runs/miner"])`, of runs and of scores.

Runs of one method, that is with the same settings but for the seed, become one line: their mean,
with a band from the smallest to the largest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.text import for_picture
from ..runs.history import RunHistory, read_run
from .charts import MAJ_AT_K, PASS_AT_K, UNSCORABLE, Chart, Panel, charts_of
from .figures import add_legend, finish_axes, new_figure, save, scale_by_two, style
from .frame import SAMPLES, Metrics, read_metrics
from .inputs import EvalResult, Method, group_methods, read_inputs, read_result, runs_of, tell_apart
from .pages import Picture

if TYPE_CHECKING:
    from pandas import DataFrame

Runs = str | Path | RunHistory | Sequence[str | Path | RunHistory]

_FEW = 12  # a line of at most so many points has a marker at each
_COLUMNS = 200  # of a line at most, which a panel can show
_MOST_BANDS = 6  # methods; beyond, bands hide the lines
_FRONT = ("grpo", "miner")  # among many methods these stand out
_SCORES = {chart.name: chart for chart in (PASS_AT_K, MAJ_AT_K)}
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


# Of runs


def draw_chart(chart: str, runs: Runs, path: str | Path | None = None) -> Any:
    """Draw one chart, which Jupyter shows.

    Args:
        chart: reward, prompt_kinds, rollouts, calibration, dose, policy or held_out.
        runs: A run or several, read or as folders; a folder of `trl-miner compare` is all of its
            runs.
        path: A .png, .svg or .pdf file to write; None: write nothing.

    Returns:
        The matplotlib figure.
    """
    histories = read_runs(runs)
    known = _named(chart, charts_of(histories))
    return save(draw_metrics(known, read_metrics(group_methods(histories), keys_of([known]))), path)


def read_runs(runs: Runs) -> list[RunHistory]:
    """Return the histories of one folder or several `runs`; a folder of `trl-miner compare` is all
    of its runs."""
    histories: list[RunHistory] = []
    for run in [runs] if isinstance(runs, str | Path | RunHistory) else runs:
        histories += [run] if isinstance(run, RunHistory) else read_inputs([run]).runs
    return tell_apart(histories)


def draw_training(run: str | Path) -> Path:
    """Draw reward, kinds of prompt and used rollouts of a run folder as its `training.png`. Return
    the path."""
    history = read_run(run)
    if not history.columns:
        raise ValueError(
            f"{run} has no logged training step. Set logging_steps below the number of steps."
        )
    path = Path(run) / "training.png"
    labels = {metric: label for series in _TRAINING.values() for metric, label in series.items()}
    panels = {metric: panel.key for panel, series in _TRAINING.items() for metric in series}
    metrics = read_metrics([Method("", [history])], labels)
    labels = {
        metric: label
        for metric, label in labels.items()
        if metric != UNSCORABLE or metrics.occurs(metric)
    }
    rows = metrics.rows[metrics.rows["metric"].isin([*labels])]
    rows = rows.assign(method=rows["metric"].map(labels), metric=rows["metric"].map(panels))
    methods = [Method(label, [], index) for index, label in enumerate(labels.values())]
    chart = Chart("training", "Training", tuple(_TRAINING), "")
    save(draw_metrics(chart, Metrics(methods, rows, metrics.axis)), path)
    return path


def training_pictures(metrics: Metrics) -> list[Picture]:
    """Return the pictures of the charts of which at least one run has something."""
    charts = charts_of([run for _, run in runs_of(metrics.methods)]).values()
    return [
        picture_of(chart, metrics)
        for chart in charts
        if not metrics.known.isdisjoint(keys_of([chart]))
    ]


def keys_of(charts: Iterable[Chart]) -> list[str]:
    """Return the metrics that charts need."""
    return [panel.key for chart in charts for panel in chart.panels]


# Of scores


def draw_scores(
    chart: str, results: str | Path | Sequence[str | Path], path: str | Path | None = None
) -> Any:
    """Draw pass_at_k or maj_at_k, a panel per benchmark, a line per result. Return the matplotlib
    figure.

    `results` are scored result folders of `trl-miner eval`; `path` is a .png, .svg or .pdf file, or
    None.
    """
    known, several = (
        _named(chart, _SCORES),
        ([results] if isinstance(results, str | Path) else results),
    )
    return save(draw_metrics(*_with_data(known, [read_result(folder) for folder in several])), path)


def result_pictures(results: Sequence[EvalResult]) -> list[Picture]:
    """Return the charts of results of `trl-miner eval` as parts of a report."""
    drawn = [_with_data(chart, results) for chart in _SCORES.values()]
    return [picture_of(chart, metrics) for chart, metrics in drawn if len(metrics.rows)]


def _named(name: str, charts: Mapping[str, Chart]) -> Chart:
    if name not in charts:
        raise ValueError(f"chart must be one of {', '.join(charts)}: got {name!r}.")
    return charts[name]


def _with_data(chart: Chart, results: Sequence[EvalResult]) -> tuple[Chart, Metrics]:
    """Return a chart with a panel for each benchmark, and tidy rows of the results, with the edges
    of their bands."""
    import pandas as pd

    names = [result.name for result in results]
    panels: dict[str, Panel] = {}
    rows, methods = [], []
    for place, result in enumerate(results):
        label = result.name if names.count(result.name) == 1 else f"{result.name} ({result.folder})"
        methods.append(Method(label, [], place))
        for name, one in result.benchmarks.items():
            title = f"{chart.title.partition(' ')[0]}, {for_picture(one['title'])}"
            panels.setdefault(name, Panel(name, title, "share of problems"))
            rows += [(name, label, *point) for point in _points(chart, one)]
    frame = pd.DataFrame(rows, columns="metric method step value low high".split())
    return replace(chart, panels=tuple(panels.values())), Metrics(methods, frame, SAMPLES)


def _points(chart: Chart, one: Mapping[str, Any]) -> list[tuple[float, ...]]:
    """Return K, the score, and the edges of its band: of Maj@K one standard deviation over the
    draws."""
    if chart is PASS_AT_K:
        intervals = one["pass@k_intervals"].items()
        return [(int(k), found["mean"], found["low"], found["high"]) for k, found in intervals]
    votes = [(int(k), vote["mean"], vote["std"]) for k, vote in one["maj@k"].items()]
    return [(k, mean, mean - std, mean + std) for k, mean, std in votes]


# A chart of tidy metrics


def draw_metrics(chart: Chart, metrics: Metrics) -> Any:
    """Return the figure of a chart, of `metrics` read for its keys: in each panel a line for each
    method."""
    is_by_k = metrics.axis == SAMPLES
    shown = [
        panel for panel in chart.panels if not panel.rare or metrics.occurs(panel.key)
    ] or chart.panels[:1]
    figure, panels = new_figure(len(shown), len(metrics.methods))
    for axes, panel in zip(panels, shown, strict=True):
        _draw_panel(axes, panel.key, metrics)
        if is_by_k and axes.has_data():
            scale_by_two(axes)
        finish_axes(axes, panel, metrics.axis, steps=not is_by_k)
    add_legend(figure, panels)
    return figure


def _draw_panel(axes: Any, metric: str, metrics: Metrics) -> None:
    """Draw a line with a band for each method that has the metric; of many methods, two stand
    out."""
    own = metrics.rows[metrics.rows["metric"] == metric]
    by_method = dict(tuple(own.groupby("method", observed=True, sort=False)))
    are_many = len(metrics.methods) > _MOST_BANDS
    for method in metrics.methods:
        if method.label not in by_method or not by_method[method.label]["value"].notna().any():
            continue
        line, (color, dash) = mean_line(by_method[method.label]), style(method.style_index)
        looks: dict[str, Any] = {"linewidth": 2.2, "zorder": 3}
        if are_many and method.label not in _FRONT:
            looks = {"linewidth": 1.2, "alpha": 0.6}
        elif (line["high"] > line["low"]).any():
            axes.fill_between(
                line.index, line["low"], line["high"], color=color, alpha=0.18, linewidth=0
            )
        if line["mean"].count() <= _FEW:
            looks |= {"marker": "o", "markersize": 4}
        axes.plot(
            line.index, line["mean"], dash, color=color, label=for_picture(method.label), **looks
        )


def mean_line(rows: "DataFrame") -> "DataFrame":
    """Return the "mean" over the runs of a method by step, with the smallest value, "low", and the
    largest, "high".

    `rows` are of one metric and one method; a band of their own are columns "low" and "high". NaN
    is a gap. Where there are many steps, neighbouring ones are put together.
    """
    low, high = ("low", "high") if "low" in rows else ("value", "value")
    line = rows.groupby("step").agg(mean=("value", "mean"), low=(low, "min"), high=(high, "max"))
    if len(line) > 2 * _COLUMNS:
        first, last = line.index[0], line.index[-1]
        column = ((line.index - first) * _COLUMNS // (last - first)).astype(int)
        parts = line.assign(step=line.index).groupby(column)
        line = parts.agg({"step": "mean", "mean": "mean", "low": "min", "high": "max"}).set_index(
            "step"
        )
    return line


def picture_of(chart: Chart, metrics: Metrics) -> Picture:
    """Return a chart as part of a report, with a caption that tells means and bands."""
    caption = [chart.caption]
    if any(len(method.runs) > 1 for method in metrics.methods):
        caption.append(
            "A line of several runs is their mean, its band from the smallest to the largest."
        )
    if len(metrics.methods) > _MOST_BANDS:
        front = " and ".join(_FRONT)
        caption.append(
            f"Above {_MOST_BANDS} methods only {front} have bands: give fewer runs to see others."
        )
    return Picture(chart.name, chart.title, " ".join(caption), draw_metrics(chart, metrics))
