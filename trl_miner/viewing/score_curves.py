"""Scores of `trl-miner eval` as pictures: Pass@K and Maj@K against K, and by level of difficulty."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..text import for_picture
from .charts import LEVELS, MAJ_AT_K, PASS_AT_K, Chart, Panel
from .curves import draw_metrics, plan_chart
from .figures import save
from .frame import SAMPLES, Metrics, as_rows
from .grouping import Method, group_results
from .material import EvalResult, read_result
from .pages import Plan

_CHARTS = {chart.name: chart for chart in (PASS_AT_K, MAJ_AT_K, LEVELS)}
_UNIT = "share of problems"
_Series = Sequence[tuple[Method, Sequence[EvalResult]]]


def draw_scores(
    chart: str, results: str | Path | EvalResult | Sequence[str | Path | EvalResult], path: str | Path | None = None
) -> Any:
    """Draw a chart of scores, one panel per benchmark.

    Args:
        chart: pass_at_k, maj_at_k or levels.
        results: Result folders of `trl-miner eval` that were scored, read or as folders.
        path: A .png or .svg file to write; None: write nothing.

    Returns:
        The matplotlib figure.

    Raises:
        FileNotFoundError: A folder is not scored.
        ValueError: There is no such chart, or a file cannot be read.
    """
    if chart not in _CHARTS:
        raise ValueError(f"chart must be one of {', '.join(_CHARTS)}: got {chart!r}.")
    several = [results] if isinstance(results, str | Path | EvalResult) else results
    series = group_results([one if isinstance(one, EvalResult) else read_result(one) for one in several])
    return save(draw_metrics(*_with_data(_CHARTS[chart], series)), path)


def result_plans(results: Sequence[EvalResult], methods: Sequence[Method]) -> list[Plan]:
    """Return the pictures of results of `trl-miner eval`, in the colors of the methods that they are of."""
    series = group_results(results, methods)
    has_means = any(len(own) > 1 for _, own in series)
    has_levels = any(one.get("levels") for result in results for one in result.benchmarks.values())
    charts = [chart for chart in _CHARTS.values() if results and (has_levels or chart is not LEVELS)]
    return [plan_chart(*_with_data(chart, series), has_means=has_means) for chart in charts]


def _with_data(chart: Chart, series: _Series) -> tuple[Chart, Metrics]:
    """Return a chart with its panels, and tidy rows of results, each a run, with the edges of their bands.

    Of several results of a method only the steps that all have are kept, and the band is of their values.
    """
    every = [(method, at, result) for method, own in series for at, result in enumerate(own)]
    benchmarks = _benchmarks(result for _, _, result in every)
    keys, points = [], []
    for method, at, result in every:
        for name, one in result.benchmarks.items():
            for metric, values in _points(chart, name, one, [*benchmarks[name]["levels"]]).items():
                keys.append((metric, method.label, str(at), None))
                points.append(np.array(sorted(values), dtype=float).reshape(-1, 4))
    rows = as_rows(keys, points, ("step", "value", "low", "high"))
    runs = rows.groupby(["metric", "method"], observed=True)["run"].transform("nunique")
    for edge in ("low", "high"):
        rows[edge] = rows[edge].where(runs == 1, rows["value"])
    rows = rows[rows.groupby(["metric", "method", "step"], observed=True)["run"].transform("count") == runs]
    panels = tuple(panel for name, one in benchmarks.items() for panel in _panels(chart, name, one))
    panels = panels or (Panel("", "No benchmark with levels" if chart is LEVELS else chart.title, _UNIT),)
    axis = "level (problems)" if chart is LEVELS else SAMPLES
    return replace(chart, panels=panels), Metrics([method for method, _ in series], rows, axis)


def _benchmarks(results: Iterable[EvalResult]) -> dict[str, dict[str, Any]]:
    """Return each benchmark once, in order of appearance, with its title and all levels of its results."""
    found: dict[str, dict[str, Any]] = {}
    for result in results:
        for name, one in result.benchmarks.items():
            known = found.setdefault(name, {**one, "levels": {}})
            known["title"] = for_picture(one.get("title") or name)
            known["levels"] = {**(one.get("levels") or {}), **known["levels"]}
    return found


def _panels(chart: Chart, name: str, one: Mapping[str, Any]) -> list[Panel]:
    if chart is not LEVELS:
        return [Panel(name, f"{chart.title.partition(' ')[0]}, {one['title']}", _UNIT)]
    ticks = tuple(f"{level}\n({part['problems']})" for level, part in one["levels"].items())
    titles = {"pass@1": f"Pass@1, {one['title']}", "pass@k": f"Pass@{one.get('k')}, {one['title']}"}
    panels = [Panel(f"{name} {metric}", title, _UNIT, share=True, ticks=ticks) for metric, title in titles.items()]
    return panels if ticks else []


def _points(chart: Chart, name: str, one: Mapping[str, Any], levels: Sequence[str]) -> dict[str, list[Any]]:
    """Return K or the place of a level, score, and the edges of its band, by the key of the panel."""
    if chart is PASS_AT_K:  # the K that have an interval over the problems
        scores, intervals = one.get("pass@k") or {}, one.get("pass@k_intervals") or {}
        return {name: [(int(k), scores[k], *_edges(intervals[k])) for k in scores if k in intervals]}
    if chart is MAJ_AT_K:  # one standard deviation over the draws; one draw has none
        votes = {int(k): (vote["mean"], vote.get("std")) for k, vote in (one.get("maj@k") or {}).items()}
        return {
            name: [(k, m, None, None) if std is None else (k, m, m - std, m + std) for k, (m, std) in votes.items()]
        }
    own, intervals = one.get("levels") or {}, one.get("level_intervals") or {}
    return {
        f"{name} {metric}": [
            (levels.index(level), part[metric], *_edges(intervals.get(level, {}).get(metric, {})))
            for level, part in own.items()
        ]
        for metric in ("pass@1", "pass@k")
    }


def _edges(interval: Mapping[str, Any]) -> tuple[Any, Any]:
    return interval.get("low"), interval.get("high")
