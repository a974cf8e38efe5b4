"""Pictures in a call: `draw_chart("rollouts", ["runs/grpo", "runs/miner"])`, of runs and of scores.

Runs of one method, that is with the same settings but for the seed, become one line: their mean, with a band from the
smallest to the largest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..runs.history import RunHistory, read_run
from ..text import for_picture
from .charts import LEVELS, MAJ_AT_K, PASS_AT_K, UNSCORABLE, Chart, Panel, charts_of
from .drawing import draw_metrics, keys_of, picture_of
from .figures import save
from .frame import SAMPLES, Metrics, as_rows, read_metrics
from .inputs import EvalResult, Method, group_methods, read_inputs, read_result, tell_apart
from .pages import Picture

Runs = str | Path | RunHistory | Sequence[str | Path | RunHistory]

_UNIT = "share of problems"
_SCORES = {chart.name: chart for chart in (PASS_AT_K, MAJ_AT_K, LEVELS)}
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


def draw_chart(chart: str | Chart, runs: Runs, path: str | Path | None = None) -> Any:
    """Draw one chart, which Jupyter shows.

    Args:
        chart: reward, prompt_kinds, rollouts, calibration, dose, update, entropy, kl, grad_norm, length, overhead or
            held_out; or a `Chart` of your own.
        runs: A run or several, read or as folders; a folder of `trl-miner compare` is all of its runs.
        path: A .png or .svg file to write; None: write nothing.

    Returns:
        The matplotlib figure.
    """
    histories = read_runs(runs)
    known = chart if isinstance(chart, Chart) else _named(chart, charts_of(histories))
    return save(draw_metrics(known, read_metrics(group_methods(histories), keys_of([known]))), path)


def read_runs(runs: Runs) -> list[RunHistory]:
    """Return the histories of one folder or several `runs`; a folder of `trl-miner compare` is all of its runs."""
    histories: list[RunHistory] = []
    for run in [runs] if isinstance(runs, str | Path | RunHistory) else runs:
        if isinstance(run, RunHistory):
            histories.append(run)
        else:
            histories += read_inputs([run]).runs or [read_run(run)]
    return tell_apart(histories)


def draw_training(run: str | Path) -> Path:
    """Draw reward, kinds of prompt and used rollouts of a run folder as its `training.png`. Return the path."""
    history = read_run(run)
    if not history.columns:
        raise ValueError(f"{run} has no logged training step. Set logging_steps below the number of steps.")
    path = Path(run) / "training.png"
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


def draw_scores(
    chart: str, results: str | Path | EvalResult | Sequence[str | Path | EvalResult], path: str | Path | None = None
) -> Any:
    """Draw pass_at_k, maj_at_k or levels, a panel per benchmark, a line per result. Return the matplotlib figure.

    `results` are scored result folders of `trl-miner eval`, read or not; `path` is a .png or .svg file, or None.
    """
    known = _named(chart, _SCORES)
    several = [results] if isinstance(results, str | Path | EvalResult) else results
    read = [one if isinstance(one, EvalResult) else read_result(one) for one in several]
    return save(draw_metrics(*_with_data(known, read)), path)


def result_pictures(results: Sequence[EvalResult]) -> list[Picture]:
    """Return the charts of results of `trl-miner eval` as parts of a report."""
    drawn = [_with_data(chart, results) for chart in _SCORES.values()]
    return [picture_of(chart, metrics) for chart, metrics in drawn if len(metrics.rows)]


def _named(name: str, charts: Mapping[str, Chart]) -> Chart:
    if name not in charts:
        raise ValueError(f"chart must be one of {', '.join(charts)}: got {name!r}.")
    return charts[name]


def _with_data(chart: Chart, results: Sequence[EvalResult]) -> tuple[Chart, Metrics]:
    """Return a chart with its panels, and tidy rows of the results, with the edges of their bands."""
    names = [result.name for result in results]
    panels: dict[str, Panel] = {}
    keys, points, methods = [], [], []
    for place, result in enumerate(results):
        label = result.name if names.count(result.name) == 1 else f"{result.name} ({result.folder})"
        methods.append(Method(label, [], place))
        for name, one in result.benchmarks.items():
            levels = one["levels"].items() if chart is LEVELS and one.get("levels") else ()
            ticks = tuple(f"{level}\n({part['problems']})" for level, part in levels)
            for metric, values in _points(chart, one).items():
                title = f"{metric}, {for_picture(one.get('title') or name)}"
                panels.setdefault(f"{name} {metric}", Panel(f"{name} {metric}", title, _UNIT, ticks=ticks))
                keys.append((f"{name} {metric}", label, label, None))
                points.append(np.array(sorted(values), dtype=float).reshape(-1, 4))
    rows = as_rows(keys, points, ("step", "value", "low", "high"))
    shown = tuple(panels.values()) or (Panel("", chart.title, _UNIT),)
    return replace(chart, panels=shown), Metrics(methods, rows, "level (problems)" if chart is LEVELS else SAMPLES)


def _points(chart: Chart, one: Mapping[str, Any]) -> dict[str, Iterable[tuple[Any, ...]]]:
    """Return by metric K or the place of a level, score, and the edges of its band."""
    if chart is PASS_AT_K:  # the K that have an interval over the problems
        scores, intervals = one.get("pass@k") or {}, one.get("pass@k_intervals") or {}
        return {"Pass@K": [(int(k), scores[k], *_edges(intervals[k])) for k in scores if k in intervals]}
    if chart is MAJ_AT_K:  # one standard deviation over the draws
        votes = {int(k): (vote["mean"], vote.get("std") or 0.0) for k, vote in (one.get("maj@k") or {}).items()}
        return {"Maj@K": [(k, mean, mean - std, mean + std) for k, (mean, std) in votes.items()]}
    levels, intervals = one.get("levels") or {}, one.get("level_intervals") or {}
    titles = {"pass@1": "Pass@1", "pass@k": f"Pass@{one.get('k')}"} if levels else {}
    return {
        title: [
            (place, part[metric], *_edges(intervals.get(level, {}).get(metric, {})))
            for place, (level, part) in enumerate(levels.items())
        ]
        for metric, title in titles.items()
    }


def _edges(interval: Mapping[str, Any]) -> tuple[Any, Any]:
    return interval.get("low"), interval.get("high")
