"""Scores of `trl-miner eval` as pictures: Pass@K and Maj@K against K, and by level of difficulty."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..text import for_picture
from .charts import LEVELS, MAJ_AT_K, PASS_AT_K, Chart, Panel
from .drawing import draw_metrics, plan_chart
from .figures import save
from .frame import SAMPLES, Metrics, as_rows
from .grouping import Method
from .material import EvalResult, read_result
from .pages import Plan

_UNIT = "share of problems"
_CHARTS = {chart.name: chart for chart in (PASS_AT_K, MAJ_AT_K, LEVELS)}


def draw_scores(
    chart: str, results: str | Path | EvalResult | Sequence[str | Path | EvalResult], path: str | Path | None = None
) -> Any:
    """Draw a chart of scores, one panel per benchmark, a line per result.

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
    read = [one if isinstance(one, EvalResult) else read_result(one) for one in several]
    return save(draw_metrics(*_with_data(_CHARTS[chart], read)), path)


def result_plans(results: Sequence[EvalResult]) -> list[Plan]:
    """Return the pictures of results of `trl-miner eval`, yet to be drawn."""
    drawn = [_with_data(chart, results) for chart in _CHARTS.values()]
    return [plan_chart(chart, metrics) for chart, metrics in drawn if len(metrics.rows)]


def _with_data(chart: Chart, results: Sequence[EvalResult]) -> tuple[Chart, Metrics]:
    """Return a chart with its panels, and tidy rows of the results, with the edges of their bands."""
    labels = _labels(results)
    panels: dict[str, Panel] = {}
    keys, points = [], []
    for label, result in zip(labels, results, strict=True):
        for name, one in result.benchmarks.items():
            levels = one["levels"].items() if chart is LEVELS and one.get("levels") else ()
            ticks = tuple(f"{level}\n({part['problems']})" for level, part in levels)
            for metric, values in _points(chart, one).items():
                title = f"{metric}, {for_picture(one.get('title') or name)}"
                panels.setdefault(f"{name} {metric}", Panel(f"{name} {metric}", title, _UNIT, ticks=ticks))
                keys.append((f"{name} {metric}", label, label, None))
                points.append(np.array(sorted(values), dtype=float).reshape(-1, 4))
    rows = as_rows(keys, points, ("step", "value", "low", "high"))
    methods = [Method(label, [], place) for place, label in enumerate(labels)]
    shown = tuple(panels.values()) or (Panel("", chart.title, _UNIT),)
    return replace(chart, panels=shown), Metrics(methods, rows, "level (problems)" if chart is LEVELS else SAMPLES)


def _labels(results: Sequence[EvalResult]) -> list[str]:
    """Return the names of results, with those of their folders where they are equal."""
    names = [result.name for result in results]
    return [
        name if names.count(name) == 1 else f"{name} ({result.folder})"
        for name, result in zip(names, results, strict=True)
    ]


def _points(chart: Chart, one: Mapping[str, Any]) -> dict[str, list[tuple[Any, ...]]]:
    """Return by metric K or the place of a level, score, and the edges of its band."""
    if chart is PASS_AT_K:  # the K that have an interval over the problems
        scores, intervals = one.get("pass@k") or {}, one.get("pass@k_intervals") or {}
        return {"Pass@K": [(int(k), scores[k], *_edges(intervals[k])) for k in scores if k in intervals]}
    if chart is MAJ_AT_K:  # one standard deviation over the draws
        votes = {int(k): (vote["mean"], vote.get("std") or 0.0) for k, vote in (one.get("maj@k") or {}).items()}
        return {"Maj@K": [(k, mean, mean - std, mean + std) for k, (mean, std) in votes.items()]}
    levels, intervals = one.get("levels") or {}, one.get("level_intervals") or {}
    return {
        title: [
            (place, part[metric], *_edges(intervals.get(level, {}).get(metric, {})))
            for place, (level, part) in enumerate(levels.items())
        ]
        for metric, title in {"pass@1": "Pass@1", "pass@k": f"Pass@{one.get('k')}"}.items()
        if levels
    }


def _edges(interval: Mapping[str, Any]) -> tuple[Any, Any]:
    return interval.get("low"), interval.get("high")
