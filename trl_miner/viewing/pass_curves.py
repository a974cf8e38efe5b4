"""Scores of `trl-miner eval` as pictures: Pass@K and Maj@K against K, and by level of difficulty."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..runs.history import number
from ..text import for_picture
from .grouping import Method, group_results
from .lines import (
    INK,
    MOST_BANDS,
    Line,
    add_legend,
    draw_lines,
    finish_axes,
    method_line,
    new_figure,
    save,
    scale_by_two,
    style,
)
from .material import EvalResult, read_result

Results = str | Path | EvalResult | Sequence[str | Path | EvalResult]
_Curve = Callable[[Mapping[str, Any], Method], Line | None]


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
    return _draw_by_k(results, path, "Pass@K", _pass_curve, methods)


def draw_maj_at_k(results: Results, path: str | Path | None = None, *, methods: Sequence[Method] = ()) -> Any:
    """Draw Maj@K against K, one panel per benchmark. For the arguments see `draw_pass_at_k`."""
    return _draw_by_k(results, path, "Maj@K", _maj_curve, methods)


def draw_levels(results: Results, path: str | Path | None = None, *, methods: Sequence[Method] = ()) -> Any:
    """Draw Pass@1 and Pass@K by level, for the benchmarks that have them. For the arguments see `draw_pass_at_k`."""
    read = _read_results(results)
    names = [name for name in _benchmark_names(read) if any(_levels_of(result, name) for result in read)]
    series = group_results(read, methods)
    figure, panels = new_figure(2 * max(1, len(names)), len(series), columns=2)
    for place, (name, metric) in enumerate((name, metric) for name in names for metric in ("pass@1", "pass@k")):
        _draw_level_panel(panels[place], series, name, metric)
    for axes in panels if not names else ():
        finish_axes(axes, title="No benchmark with levels", xlabel="level", ylabel="score")
    add_legend(figure, panels)
    return save(figure, path)


def _levels_of(result: EvalResult, name: str) -> Mapping[str, Mapping[str, Any]]:
    return result.benchmarks.get(name, {}).get("levels") or {}


def _read_results(results: Results) -> list[EvalResult]:
    several = [results] if isinstance(results, str | Path | EvalResult) else list(results)
    return [one if isinstance(one, EvalResult) else read_result(one) for one in several]


def _benchmark_names(results: Sequence[EvalResult]) -> list[str]:
    """Return each benchmark once, in order of appearance."""
    return list(dict.fromkeys(name for result in results for name in result.benchmarks))


def _draw_by_k(
    results: Results, path: str | Path | None, metric: str, curve: _Curve, methods: Sequence[Method]
) -> Any:
    read = _read_results(results)
    series, names = group_results(read, methods), _benchmark_names(read)
    figure, panels = new_figure(max(1, len(names)), len(series), columns=3)
    for axes, name in zip(panels, names or [""], strict=True):
        lines = [line for method, own in series if (line := _line(method, own, name, curve)) is not None]
        draw_lines(axes, lines, panels=len(panels), bands=len(series) <= MOST_BANDS)
        largest = max((x for line in lines for x in line.x), default=1)
        scale_by_two(axes, [2**power for power in range(int(largest).bit_length())])
        title = f"{metric}, {_title(read, name)}" if name else metric
        finish_axes(axes, title=title, xlabel="K (samples of each problem)", ylabel="share of problems", percent=True)
    add_legend(figure, panels)
    return save(figure, path)


def _line(method: Method, results: Sequence[EvalResult], name: str, curve: _Curve) -> Line | None:
    """Return one result with its own band; of several the mean, and a band from the smallest to the largest."""
    every = [curve(one.benchmarks[name], method) for one in results if name in one.benchmarks]
    lines = [line for line in every if line is not None]
    if len(lines) < 2:
        return lines[0] if lines else None
    ks = set.intersection(*(set(line.x) for line in lines))  # no value is made up between two K
    several = [[(x, y) for x, y in zip(line.x, line.y, strict=True) if x in ks] for line in lines]
    return method_line(Method(method.label, several, method.place), lambda points: points)  # type: ignore[arg-type]


def _pass_curve(one: Mapping[str, Any], method: Method) -> Line | None:
    points = _by_k(one.get("pass@k"), lambda value: value)
    intervals = one.get("pass@k_intervals") or {}
    known = {k: (intervals[str(k)]["low"], intervals[str(k)]["high"]) for k, _ in points if str(k) in intervals}
    if known:
        points = [(k, value) for k, value in points if k in known]
    return _banded(points, known, method)


def _maj_curve(one: Mapping[str, Any], method: Method) -> Line | None:
    points = _by_k(one.get("maj@k"), lambda value: value.get("mean"))
    spreads = dict(_by_k(one.get("maj@k"), lambda value: value.get("std")))  # a single draw has none
    return _banded(points, {k: (y - spreads[k], y + spreads[k]) for k, y in points if k in spreads}, method)


def _banded(
    points: Sequence[tuple[int, float]], bands: Mapping[int, tuple[float, float]], method: Method
) -> Line | None:
    if not points:
        return None
    x, y = map(list, zip(*points, strict=True))
    if len(bands) < len(points):
        return Line(method.label, method.place, x, y)
    return Line(method.label, method.place, x, y, low=[bands[k][0] for k in x], high=[bands[k][1] for k in x])


def _by_k(scores: Mapping[str, Any] | None, value_of: Callable[[Any], Any]) -> list[tuple[int, float]]:
    pairs = ((int(k), number(value_of(value))) for k, value in (scores or {}).items())
    return sorted((k, value) for k, value in pairs if value is not None)


def _draw_level_panel(
    axes: Any, series: Sequence[tuple[Method, Sequence[EvalResult]]], name: str, metric: str
) -> None:
    """Draw one line per model over the levels, which are categories; the models stand a little apart."""
    import numpy as np

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
    axes.set_ylim(-0.03, 1.03)
    k = 1 if metric == "pass@1" else next(one.benchmarks[name].get("k") for one in results if name in one.benchmarks)
    title = f"Pass@{k}, {_title(results, name)}"
    finish_axes(axes, title=title, xlabel="level (problems)", ylabel="score", percent=True)


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
