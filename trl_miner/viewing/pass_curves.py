"""Scores of `trl-miner eval` as pictures: Pass@K and Maj@K against K, and by level of difficulty."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..runs.history import number
from ..text import for_picture
from .grouping import Method, group_methods
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
CAPTIONS = {
    "pass_at_k": "Share of problems that at least one of K samples solves, the unbiased estimate from all samples. "
    "Logarithmic axis, base 2. The left end is how good one answer is; the right end is what the model can reach at "
    "all.",
    "maj_at_k": "Share of problems whose most frequent answer among K samples is right, mean over draws of K samples. "
    "Logarithmic axis, base 2.",
    "levels": "Scores by the benchmark's own levels of difficulty; below each level its number of problems. Few "
    "problems: wide intervals.",
}
BANDS = {
    "pass_at_k": "Band: 95 % bootstrap interval over the problems",
    "maj_at_k": "Band: ± 1 standard deviation of the score over the draws",
    "levels": "Bars: 95 % bootstrap interval over the problems of the level",
}
TITLES = {"pass_at_k": "Pass@K against K", "maj_at_k": "Maj@K against K", "levels": "Scores by level of difficulty"}


def draw_pass_at_k(results: Results, path: str | Path | None = None, *, methods: Sequence[Method] = ()) -> Any:
    """Pass@K against K, one panel per benchmark.

    Args:
        results: Scored result folders of `trl-miner eval`, read or as folders.
        path: Where to write it as .png or .svg; None: nowhere.
        methods: Those of the training curves beside, for the same colors.

    Returns:
        The matplotlib figure.

    Raises:
        FileNotFoundError: A folder is not scored.
        ValueError: A file cannot be read.
    """
    return _draw_scale(results, path, "Pass@K", _pass_curve, methods)


def draw_maj_at_k(results: Results, path: str | Path | None = None, *, methods: Sequence[Method] = ()) -> Any:
    """Maj@K against K, one panel per benchmark. For the arguments see `draw_pass_at_k`."""
    return _draw_scale(results, path, "Maj@K", _maj_curve, methods)


def draw_levels(results: Results, path: str | Path | None = None, *, methods: Sequence[Method] = ()) -> Any:
    """Pass@1 and Pass@K by level, for the benchmarks that have them. For the arguments see `draw_pass_at_k`."""
    found = read_results(results)
    names = [name for name in benchmark_names(found) if any(_levels_of(result, name) for result in found)]
    series = group_results(found, methods)
    figure, panels = new_figure(2 * max(1, len(names)), len(series), columns=2)
    for place, (name, metric) in enumerate((name, metric) for name in names for metric in ("pass@1", "pass@k")):
        _draw_level_panel(panels[place], series, name, metric)
    for axes in panels if not names else ():
        finish_axes(axes, title="No benchmark with levels", xlabel="level", ylabel="score")
    add_legend(figure, panels)
    return save(figure, path)


def read_results(results: Results) -> list[EvalResult]:
    """Results as they are, folders read.

    Args:
        results: One or several of either.

    Returns:
        Results.
    """
    several = [results] if isinstance(results, str | Path | EvalResult) else list(results)
    return [one if isinstance(one, EvalResult) else read_result(one) for one in several]


def benchmark_names(results: Sequence[EvalResult]) -> list[str]:
    """Each benchmark once, in order of appearance.

    Args:
        results: Read results.

    Returns:
        Their names.
    """
    return list(dict.fromkeys(name for result in results for name in result.benchmarks))


def group_results(
    results: Sequence[EvalResult], methods: Sequence[Method] = ()
) -> list[tuple[Method, list[EvalResult]]]:
    """Results of runs of one method, sampled alike, become one line.

    Args:
        results: In the order of the report.
        methods: Those of the training curves, whose labels, colors and dashes their results get too.

    Returns:
        For each line its name and place, and its results.
    """
    runs = {str(one.run.folder): one.run for one in results if one.run is not None}
    methods = methods or group_methods(list(runs.values()))
    method_of = {str(run.folder): method for method in methods for run in method.runs}
    groups: dict[tuple[str, ...], list[EvalResult]] = {}
    place_of: dict[tuple[str, ...], int] = {}
    for result in results:
        method = method_of.get(str(result.run.folder)) if result.run is not None else None
        if method is None or result.run is None or result.name != result.run.name:
            key: tuple[str, ...] = (result.name, str(result.folder))
        else:
            key = (method.label, *_sampling(result))
            if method.place not in place_of.values():
                place_of[key] = method.place
        groups.setdefault(key, []).append(result)
    labels = [key[0] for key in groups]
    found, free = [], len(methods)
    for key, several in groups.items():
        told = key[0] if labels.count(key[0]) == 1 else f"{key[0]} ({several[0].folder.name})"
        found.append((Method(told, [], place_of.get(key, free)), several))
        free += key not in place_of
    return found


def lacks_intervals(results: Sequence[EvalResult]) -> list[EvalResult]:
    """Results scored before intervals against K were written.

    Args:
        results: Read results.

    Returns:
        Those of them.
    """
    return [result for result in results if any(not one.get("pass@k_intervals") for one in result.benchmarks.values())]


def _draw_scale(
    results: Results,
    path: str | Path | None,
    metric: str,
    curve: Callable[[Mapping[str, Any], Method], Line | None],
    methods: Sequence[Method],
) -> Any:
    found = read_results(results)
    series, names = group_results(found, methods), benchmark_names(found)
    figure, panels = new_figure(max(1, len(names)), len(series), columns=3)
    for axes, name in zip(panels, names or [""], strict=True):
        lines = [line for method, own in series if (line := _line(method, own, name, curve)) is not None]
        draw_lines(axes, lines, panels=len(panels), bands=len(series) <= MOST_BANDS)
        largest = max((x for line in lines for x in line.x), default=1)
        scale_by_two(axes, [2**power for power in range(int(largest).bit_length())])
        title = f"{metric}, {_title(found, name)}" if name else metric
        finish_axes(axes, title=title, xlabel="K (samples of each problem)", ylabel="share of problems", percent=True)
    add_legend(figure, panels)
    return save(figure, path)


def _line(
    method: Method,
    results: Sequence[EvalResult],
    name: str,
    curve: Callable[[Mapping[str, Any], Method], Line | None],
) -> Line | None:
    """One result with its own band; of several the mean, and a band from the smallest to the largest."""
    lines = [
        line for one in results if name in one.benchmarks and (line := curve(one.benchmarks[name], method)) is not None
    ]
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


def _by_k(found: Any, value_of: Callable[[Any], Any]) -> list[tuple[int, float]]:
    pairs = ((int(k), number(value_of(value))) for k, value in (found or {}).items())
    return sorted((k, value) for k, value in pairs if value is not None)


def _draw_level_panel(
    axes: Any, series: Sequence[tuple[Method, Sequence[EvalResult]]], name: str, metric: str
) -> None:
    """One line per model over the levels, which are categories; the models stand a little apart."""
    import numpy as np

    series = [(method, own) for method, own in series if any(_levels_of(result, name) for result in own)]
    levels: dict[str, int] = {}
    for _, own in series:
        for result in own:
            for level, part in _levels_of(result, name).items():
                levels.setdefault(level, int(part["problems"]))
    for at, (method, own) in enumerate(series):
        color, dash, marker = style(method.place)
        middles, downs, ups = [], [], []
        for level in levels:
            parts = [_level(result, name, level, metric) for result in own]
            known = [part for part in parts if part is not None]
            middle = sum(part[0] for part in known) / len(known) if known else float("nan")
            middles.append(middle)
            # of one model the interval over problems, of several runs the smallest and the largest
            downs.append(min((part[1] if len(known) == 1 else part[0] for part in known), default=middle))
            ups.append(max((part[2] if len(known) == 1 else part[0] for part in known), default=middle))
        y, low, high = np.array(middles), np.array(downs), np.array(ups)
        x = np.arange(len(levels)) + 0.5 * ((at + 0.5) / len(series) - 0.5)
        axes.errorbar(
            x, y, yerr=np.clip([y - low, high - y], 0, None), fmt=dash, color=color, marker=marker, markersize=5,
            linewidth=1.2, elinewidth=1.0, capsize=2, label=for_picture(method.label),
        )  # fmt: skip
    axes.set_xticks(range(len(levels)), [f"{level}\n({count})" for level, count in levels.items()], color=INK)
    axes.set_ylim(-0.03, 1.03)
    results = [result for _, own in series for result in own]
    k = next((result.benchmarks[name].get("k") for result in results if name in result.benchmarks), None)
    shown = "Pass@1" if metric == "pass@1" else f"Pass@{k}"
    finish_axes(
        axes, title=f"{shown}, {_title(results, name)}", xlabel="level (problems)", ylabel="score", percent=True
    )


def _level(result: EvalResult, name: str, level: str, metric: str) -> tuple[float, float, float] | None:
    """Mean and interval; without an interval the mean three times."""
    value = number(_levels_of(result, name).get(level, {}).get(metric))
    if value is None:
        return None
    interval = result.benchmarks[name].get("level_intervals", {}).get(level, {}).get(metric, {})
    return value, interval.get("low", value), interval.get("high", value)


def _levels_of(result: EvalResult, name: str) -> Mapping[str, Mapping[str, Any]]:
    return result.benchmarks.get(name, {}).get("levels") or {}


def _title(results: Sequence[EvalResult], name: str) -> str:
    titles = (result.benchmarks[name].get("title") for result in results if name in result.benchmarks)
    return for_picture(next(filter(None, titles), name))


def _sampling(result: EvalResult) -> tuple[str, ...]:
    return tuple(repr(result.settings.get(name)) for name in ("temperature", "top_p", "max_tokens", "style"))
