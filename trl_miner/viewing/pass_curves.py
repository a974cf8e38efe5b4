"""Scores of `trl-miner eval` as pictures: Pass@K and Maj@K against K, and by level of difficulty."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runs.history import number
from ..text import for_picture
from .charts import LEVELS, MAJ_AT_K, PASS_AT_K, Chart, Panel
from .curves import draw_metrics, plan_chart
from .figures import INK, add_legend, finish_axes, new_figure, save, style
from .frame import SAMPLES, Metrics, as_rows
from .grouping import Method, group_results
from .material import EvalResult, read_result
from .pages import Plan

if TYPE_CHECKING:
    from pandas import DataFrame

Results = str | Path | EvalResult | Sequence[str | Path | EvalResult]
_Series = Sequence[tuple[Method, Sequence[EvalResult]]]


def draw_pass_at_k(results: Results, path: str | Path | None = None, *, methods: Sequence[Method] = ()) -> Any:
    """Draw Pass@K against K, one panel per benchmark.

    Args:
        results: Scored result folders of `trl-miner eval`, read or as folders.
        path: A .png or .svg file to write; None: write nothing.
        methods: Those of the training curves of the same report, for the same colors.

    Returns:
        The matplotlib figure.

    Raises:
        FileNotFoundError: A folder is not scored.
        ValueError: A file cannot be read.
    """
    return save(draw_metrics(*_by_k(PASS_AT_K, _read_results(results), methods)), path)


def draw_maj_at_k(results: Results, path: str | Path | None = None, *, methods: Sequence[Method] = ()) -> Any:
    """Draw Maj@K against K, one panel per benchmark. For the arguments see `draw_pass_at_k`."""
    return save(draw_metrics(*_by_k(MAJ_AT_K, _read_results(results), methods)), path)


def draw_levels(results: Results, path: str | Path | None = None, *, methods: Sequence[Method] = ()) -> Any:
    """Draw Pass@1 and Pass@K by level, for the benchmarks that have them. For the arguments see `draw_pass_at_k`."""
    read = _read_results(results)
    names = [name for name in _benchmarks(read) if any(_levels_of(result, name) for result in read)]
    series = group_results(read, methods)
    figure, panels = new_figure(2 * max(1, len(names)), len(series), columns=2)
    for place, (name, metric) in enumerate((name, metric) for name in names for metric in ("pass@1", "pass@k")):
        _draw_level_panel(panels[place], series, name, metric)
    for axes in panels if not names else ():
        finish_axes(axes, title="No benchmark with levels", xlabel="level", ylabel="score")
    add_legend(figure, panels)
    return save(figure, path)


def result_plans(results: Sequence[EvalResult], methods: Sequence[Method]) -> list[Plan]:
    """Return the pictures of results of `trl-miner eval`, in the colors of the methods that they are of."""
    has_means = any(len(own) > 1 for _, own in group_results(results, methods))
    charts = (PASS_AT_K, MAJ_AT_K) if results else ()
    plans = [plan_chart(*_by_k(chart, results, methods), has_means=has_means) for chart in charts]
    if any(one.get("levels") for result in results for one in result.benchmarks.values()):
        plans.append(Plan(LEVELS.name, LEVELS.title, LEVELS.caption, lambda: draw_levels(results, methods=methods)))
    return plans


def _by_k(chart: Chart, results: Sequence[EvalResult], methods: Sequence[Method]) -> tuple[Chart, Metrics]:
    """Return a chart of scores by K with a panel for each benchmark, and its data."""
    series, metric = group_results(results, methods), chart.title.partition(" ")[0]
    panels = [Panel(name, f"{metric}, {_title(results, name)}", "share of problems") for name in _benchmarks(results)]
    rows = _rows_by_k(series, metric.lower())
    return (
        replace(chart, panels=tuple(panels or [Panel("", metric, "share of problems")])),
        Metrics([method for method, _ in series], rows, SAMPLES),
    )


def _rows_by_k(series: _Series, metric: str) -> "DataFrame":
    """Return tidy rows: K as step, benchmarks as metrics, results as runs; of one result the band is its own.

    Of the results of a method only the K that all have are kept: no value is made up between two K.
    """
    keys, points = [], []
    for method, own in series:
        for at, result in enumerate(own):
            for name, one in result.benchmarks.items():
                keys.append((name, method.label, str(at), None))
                points.append(_points(one, metric))
    rows = as_rows(keys, [own[:, :2] for own in points])
    rows["low"], rows["high"] = np.concatenate([np.empty((0, 4)), *points])[:, 2:].T
    runs = rows.groupby(["metric", "method"], observed=True)["run"].transform("nunique")
    return rows[rows.groupby(["metric", "method", "step"], observed=True)["run"].transform("count") == runs]


def _points(one: Mapping[str, Any], metric: str) -> np.ndarray:
    """Return (n, 4) K ascending, scores and the edges of their band, NaN where it is not known.

    The band of Pass@K is its interval over the problems, and the K are those that have one; that of Maj@K is one
    standard deviation over the draws.
    """
    scores = {k: value for k, value in (one.get(metric) or {}).items() if k.isdecimal()}
    if metric == "pass@k":
        intervals = one.get("pass@k_intervals") or dict.fromkeys(scores, {})
        bands = {k: (value, *map(intervals[k].get, ("low", "high"))) for k, value in scores.items() if k in intervals}
    else:
        bands = {
            k: _with_deviation(number(value.get("mean")), number(value.get("std"))) for k, value in scores.items()
        }
    points = [(int(k), *band) for k, band in bands.items() if number(band[0]) is not None]
    return np.array(sorted(points), dtype=float).reshape(-1, 4)


def _with_deviation(mean: float | None, std: float | None) -> tuple[float | None, ...]:
    return mean, *((None, None) if mean is None or std is None else (mean - std, mean + std))  # one draw has none


def _read_results(results: Results) -> list[EvalResult]:
    several = [results] if isinstance(results, str | Path | EvalResult) else list(results)
    return [one if isinstance(one, EvalResult) else read_result(one) for one in several]


def _benchmarks(results: Sequence[EvalResult]) -> list[str]:
    """Return each benchmark once, in order of appearance."""
    return list(dict.fromkeys(name for result in results for name in result.benchmarks))


def _levels_of(result: EvalResult, name: str) -> Mapping[str, Mapping[str, Any]]:
    return result.benchmarks.get(name, {}).get("levels") or {}


def _draw_level_panel(axes: Any, series: _Series, name: str, metric: str) -> None:
    """Draw one line per model over the levels, which are categories; the models stand a little apart."""
    series = [(method, own) for method, own in series if any(_levels_of(result, name) for result in own)]
    results = [result for _, own in series for result in own]
    problems: dict[str, int] = {}
    for result in results:
        for level, part in _levels_of(result, name).items():
            problems.setdefault(level, int(part["problems"]))
    for at, (method, own) in enumerate(series):
        color, dash, marker = style(method.place)
        y, low, high = np.array([_level_scores(own, name, level, metric) for level in problems]).T
        x = np.arange(len(problems)) + 0.5 * ((at + 0.5) / len(series) - 0.5)
        axes.errorbar(
            x,
            y,
            yerr=np.clip([y - low, high - y], 0, None),
            fmt=dash,
            color=color,
            marker=marker,
            markersize=5,
            linewidth=1.2,
            elinewidth=1.0,
            capsize=2,
            label=for_picture(method.label),
        )
    axes.set_xticks(range(len(problems)), [f"{level}\n({count})" for level, count in problems.items()], color=INK)
    k = 1 if metric == "pass@1" else next(one.benchmarks[name].get("k") for one in results if name in one.benchmarks)
    title = f"Pass@{k}, {_title(results, name)}"
    finish_axes(axes, title=title, xlabel="level (problems)", ylabel="score", share=True, percent=True)


def _level_scores(results: Sequence[EvalResult], name: str, level: str, metric: str) -> tuple[float, float, float]:
    """Return mean, low and high: of one model its interval over problems, of several the smallest and the largest."""
    scores = {
        at: value
        for at, result in enumerate(results)
        if (value := number(_levels_of(result, name).get(level, {}).get(metric))) is not None
    }
    if not scores:
        return float("nan"), float("nan"), float("nan")
    mean = sum(scores.values()) / len(scores)
    if len(scores) > 1:
        return mean, min(scores.values()), max(scores.values())
    intervals = results[next(iter(scores))].benchmarks[name].get("level_intervals", {})
    interval = intervals.get(level, {}).get(metric, {})
    return mean, interval.get("low", mean), interval.get("high", mean)


def _title(results: Sequence[EvalResult], name: str) -> str:
    titles = (result.benchmarks[name].get("title") for result in results if name in result.benchmarks)
    return for_picture(next(filter(None, titles), name))
