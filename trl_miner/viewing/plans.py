"""Which pictures a report has, with their captions."""

import functools
from collections.abc import Mapping, Sequence

from ..runs.history import RunHistory
from . import lines
from .charts import COMPLETIONS, HELD_OUT, Chart, charts_of
from .completions import Completions, completions_history
from .curves import draw_chart, has_chart
from .grouping import Method, group_results
from .material import EvalResult
from .pages import Plan
from .pass_curves import draw_levels, draw_maj_at_k, draw_pass_at_k

SCORES = {  # of `trl-miner eval`: title, caption, function
    "pass_at_k": (
        "Pass@K against K",
        "Share of problems that at least one of K samples solves, the unbiased estimate from all samples. Logarithmic "
        "axis, base 2. The left end is how good one answer is; the right end is what the model can reach at all. "
        "Band: 95 % bootstrap interval over the problems.",
        draw_pass_at_k,
    ),
    "maj_at_k": (
        "Maj@K against K",
        "Share of problems whose most frequent answer among K samples is right, mean over draws of K samples. "
        "Logarithmic axis, base 2. Band: ± 1 standard deviation of the score over the draws.",
        draw_maj_at_k,
    ),
    "levels": (
        "Scores by level of difficulty",
        "Scores by the benchmark's own levels of difficulty; below each level its number of problems. Few problems: "
        "wide intervals. Bars: 95 % bootstrap interval over the problems of the level.",
        draw_levels,
    ),
}


def training_plans(
    runs: Sequence[RunHistory], methods: Sequence[Method], completions: Mapping[str, Completions], smooth: int
) -> list[Plan]:
    """Return the charts of which at least one run has something; scores and completions are never smoothed."""
    plans = []
    for chart in charts_of(runs).values():
        is_smooth = chart.name not in (HELD_OUT, COMPLETIONS.name)
        if chart is COMPLETIONS:
            having = [run for run in runs if str(run.folder) in completions]
            runs = [completions_history(run, completions[str(run.folder)]) for run in having]
        if any(has_chart(chart, run) for run in runs):
            plans.append(_training_plan(chart, runs, methods, smooth if is_smooth else 1))
    return plans


def result_plans(results: Sequence[EvalResult], methods: Sequence[Method]) -> list[Plan]:
    """Return the pictures of results of `trl-miner eval`, in the colors of the methods that they are of."""
    series = group_results(results, methods)
    more = []
    if any(len(own) > 1 for _, own in series):
        more.append("Where a line is the mean of several results: from the smallest to the largest of them.")
    has_levels = any(one.get("levels") for result in results for one in result.benchmarks.values())
    plans = []
    for name, (title, caption, draw) in SCORES.items() if results else ():
        is_crowded = len(series) > lines.MOST_BANDS and name != "levels"
        own = [caption, *more, *([f"Bands are left out above {lines.MOST_BANDS} lines."] if is_crowded else [])]
        if name != "levels" or has_levels:
            plans.append(Plan(name, title, " ".join(own), functools.partial(draw, results, methods=methods)))
    return plans


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
