"""Scores of `trl-miner eval` as pictures: Pass@K and Maj@K against K, and by level of difficulty."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runs.history import number
from ..text import for_picture
from .charts import LEVELS, MAJ_AT_K, PASS_AT_K, Chart, Panel
from .curves import draw_metrics, plan_chart
from .figures import INK, save
from .frame import SAMPLES, Metrics, as_rows
from .grouping import Method, group_results
from .material import EvalResult, read_result
from .pages import Plan

if TYPE_CHECKING:
    from pandas import DataFrame

Results = str | Path | EvalResult | Sequence[str | Path | EvalResult]
_Series = Sequence[tuple[Method, Sequence[EvalResult]]]


def draw_pass_at_k(results: Results, path: str | Path | None = None) -> Any:
    """Draw Pass@K against K, one panel per benchmark.

    Args:
        results: ComparableRuns result folders of `trl-miner eval`, read or as folders.
        path: A .png or .svg file to write; None: write nothing.

    Returns:
        The matplotlib figure.

    Raises:
        FileNotFoundError: A folder is not scored.
        ValueError: A file cannot be read.
    """
    return save(draw_metrics(*_by_k(PASS_AT_K, group_results(_read_results(results)))), path)


def draw_maj_at_k(results: Results, path: str | Path | None = None) -> Any:
    """Draw Maj@K against K, one panel per benchmark. For the arguments see `draw_pass_at_k`."""
    return save(draw_metrics(*_by_k(MAJ_AT_K, group_results(_read_results(results)))), path)


def draw_levels(results: Results, path: str | Path | None = None) -> Any:
    """Draw Pass@1 and Pass@K by level, for the benchmarks that have them. For the arguments see `draw_pass_at_k`."""
    return save(_draw_levels(group_results(_read_results(results))), path)


def result_plans(results: Sequence[EvalResult], methods: Sequence[Method]) -> list[Plan]:
    """Return the pictures of results of `trl-miner eval`, in the colors of the methods that they are of."""
    series = group_results(results, methods)
    has_means = any(len(own) > 1 for _, own in series)
    charts = (PASS_AT_K, MAJ_AT_K) if results else ()
    plans = [plan_chart(*_by_k(chart, series), has_means=has_means) for chart in charts]
    if any(one.get("levels") for result in results for one in result.benchmarks.values()):
        plans.append(Plan(LEVELS.name, LEVELS.title, LEVELS.caption, lambda: _draw_levels(series)))
    return plans


def _by_k(chart: Chart, series: _Series) -> tuple[Chart, Metrics]:
    """Return a chart of scores by K with a panel for each benchmark, and its data."""
    metric = chart.title.partition(" ")[0]
    panels = [
        Panel(name, f"{metric}, {one['title']}", "share of problems") for name, one in _benchmarks(series).items()
    ]
    rows = _rows(series, lambda name, one: {name: _points_by_k(one, metric.lower())})
    panels = panels or [Panel("", metric, "share of problems")]
    return replace(chart, panels=tuple(panels)), Metrics([method for method, _ in series], rows, SAMPLES)


def _draw_levels(series: _Series) -> Any:
    benchmarks = {name: one for name, one in _benchmarks(series).items() if one.get("levels")}
    panels = [
        Panel(f"{name} {metric}", f"Pass@{k}, {one['title']}", "share of problems", share=True)
        for name, one in benchmarks.items()
        for metric, k in (("pass@1", 1), ("pass@k", one.get("k")))
    ]
    rows = _rows(series, lambda name, one: _points_by_level(name, one, [*benchmarks.get(name, {}).get("levels", ())]))
    chart = replace(LEVELS, panels=tuple(panels or [Panel("", "No benchmark with levels", "score")]))
    figure = draw_metrics(chart, Metrics([method for method, _ in series], rows, "level (problems)"))
    for at, one in enumerate(benchmarks.values()):
        labels = [f"{level}\n({part['problems']})" for level, part in one["levels"].items()]
        for axes in figure.axes[2 * at : 2 * at + 2]:
            axes.set_xticks(range(len(labels)), labels, color=INK)
    return figure


def _rows(series: _Series, points_of: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]) -> "DataFrame":
    """Return tidy rows of results, each a run, with the edges of their bands.

    Of several results of a method only the steps that all have are kept, and the band is of their values.
    """
    keys, points = [], []
    for method, own in series:
        for at, result in enumerate(own):
            for name, one in result.benchmarks.items():
                for metric, values in points_of(name, one).items():
                    keys.append((metric, method.label, str(at), None))
                    points.append(np.array(sorted(values), dtype=float).reshape(-1, 4))
    rows = as_rows(keys, points, ("step", "value", "low", "high"))
    runs = rows.groupby(["metric", "method"], observed=True)["run"].transform("nunique")
    for edge in ("low", "high"):
        rows[edge] = rows[edge].where(runs == 1, rows["value"])
    return rows[rows.groupby(["metric", "method", "step"], observed=True)["run"].transform("count") == runs]


def _points_by_k(one: Mapping[str, Any], metric: str) -> list[tuple[Any, ...]]:
    """Return K, score and the edges of its band.

    The band of Pass@K is its interval over the problems, and the K are those that have one; that of Maj@K is one
    standard deviation over the draws.
    """
    scores = {k: value for k, value in (one.get(metric) or {}).items() if k.isdecimal()}
    if metric == "pass@k":
        intervals = one.get("pass@k_intervals") or dict.fromkeys(scores, {})
        points = [(int(k), scores[k], *_edges(intervals[k])) for k in scores if k in intervals]
    else:
        points = [(int(k), value.get("mean"), *_deviation(value)) for k, value in scores.items()]
    return [point for point in points if number(point[1]) is not None]


def _points_by_level(name: str, one: Mapping[str, Any], levels: Sequence[str]) -> dict[str, list[tuple[Any, ...]]]:
    """Return by metric the place of a level, its score and the edges of its interval."""
    own, intervals = one.get("levels") or {}, one.get("level_intervals") or {}
    return {
        f"{name} {metric}": [
            (place, own[level][metric], *_edges(intervals.get(level, {}).get(metric, {})))
            for place, level in enumerate(levels)
            if number(own.get(level, {}).get(metric)) is not None
        ]
        for metric in ("pass@1", "pass@k")
    }


def _edges(interval: Mapping[str, Any]) -> tuple[Any, Any]:
    return interval.get("low"), interval.get("high")


def _deviation(value: Mapping[str, Any]) -> tuple[Any, Any]:
    mean, std = number(value.get("mean")), number(value.get("std"))
    return (None, None) if mean is None or std is None else (mean - std, mean + std)  # one draw has none


def _read_results(results: Results) -> list[EvalResult]:
    several = [results] if isinstance(results, str | Path | EvalResult) else list(results)
    return [one if isinstance(one, EvalResult) else read_result(one) for one in several]


def _benchmarks(series: _Series) -> dict[str, dict[str, Any]]:
    """Return each benchmark once, in order of appearance, with its title and all levels of its results."""
    found: dict[str, dict[str, Any]] = {}
    for _, own in series:
        for result in own:
            for name, one in result.benchmarks.items():
                known = found.setdefault(name, {**one, "levels": {}})
                known["title"] = for_picture(one.get("title") or name)
                known["levels"] = {**(one.get("levels") or {}), **known["levels"]}
    return found
