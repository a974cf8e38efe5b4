"""Which pictures a report has, with their captions."""

from collections.abc import Mapping, Sequence

from ..runs.history import RunHistory
from . import lines
from .charts import COMPLETIONS, HELD_OUT, Chart, charts_of
from .completions import Completions, completions_history
from .curves import draw_chart, has_chart
from .grouping import Method
from .material import EvalResult
from .pages import Plan
from .pass_curves import SCORE_CHARTS, ScoreChart, group_results, levels_of


def training_plans(
    runs: Sequence[RunHistory], methods: Sequence[Method], completions: Mapping[str, Completions], smooth: int
) -> list[Plan]:
    """Return the charts of which at least one run has something.

    Args:
        runs: Of the report.
        methods: Their methods.
        completions: By run folder, of the runs that have some.
        smooth: Logs of a trailing mean; scores and completions are shown as they are.
    """
    plans = []
    for chart in charts_of(runs).values():
        is_smooth = chart.name not in (HELD_OUT, COMPLETIONS.name)
        if chart is COMPLETIONS:
            runs = [
                completions_history(run, completions[str(run.folder)])
                for run in runs
                if str(run.folder) in completions
            ]
        if any(has_chart(chart, run) for run in runs):
            plans.append(_training_plan(chart, runs, methods, smooth if is_smooth else 1))
    return plans


def result_plans(results: Sequence[EvalResult], methods: Sequence[Method]) -> list[Plan]:
    """Return the pictures of results of `trl-miner eval`, in the colors of the methods that they are of."""
    series = group_results(results, methods)
    return [
        _result_plan(chart, results, methods, series)
        for chart in SCORE_CHARTS
        if results and (chart.name != "levels" or any(levels_of(result) for result in results))
    ]


def _training_plan(chart: Chart, runs: Sequence[RunHistory], methods: Sequence[Method], smooth: int) -> Plan:
    caption = [chart.caption]
    if any(len(method.runs) > 1 for method in methods):
        caption.append("Line: mean over the runs of a method.")
        if len(methods) <= lines.MOST_BANDS:
            caption.append("Band: from the smallest to the largest of them.")
        else:
            caption.append(f"Bands are left out above {lines.MOST_BANDS} methods: give fewer runs to see them.")
    if smooth > 1:
        caption.append(f"Trailing mean over {smooth} logs of each run.")
    return Plan(chart.name, chart.title, " ".join(caption), lambda: draw_chart(chart, runs, smooth=smooth))


def _result_plan(
    chart: ScoreChart,
    results: Sequence[EvalResult],
    methods: Sequence[Method],
    series: Sequence[tuple[Method, Sequence[EvalResult]]],
) -> Plan:
    caption = [chart.caption, f"{chart.band}."]
    if any(len(own) > 1 for _, own in series):
        caption.append("Where a line is the mean of several results: from the smallest to the largest of them.")
    if len(series) > lines.MOST_BANDS and chart.name != "levels":
        caption.append(f"Bands are left out above {lines.MOST_BANDS} lines.")
    return Plan(chart.name, chart.title, " ".join(caption), lambda: chart.draw(results, methods=methods))
