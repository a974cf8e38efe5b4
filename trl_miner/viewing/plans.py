"""Which pictures a report has, with their captions."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .charts import COMPLETIONS, HELD_OUT, Chart, charts_of
from .completions import Completions, completions_history
from .curves import draw_metrics, has_chart, keys_of
from .figures import MOST_BANDS
from .frame import Metrics, read_metrics
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


def training_plans(metrics: Metrics, completions: Mapping[str, Completions], smooth: int) -> list[Plan]:
    """Return the charts of which at least one run has something; scores and completions are never smoothed."""
    runs = [run for method in metrics.methods for run in method.runs]
    plans = []
    for chart in charts_of(runs).values():
        own = metrics
        if chart is COMPLETIONS:
            own = read_metrics(_of_completions(metrics.methods, completions), keys_of([chart]))
        if any(has_chart(chart, own, run) for method in own.methods for run in method.runs):
            plans.append(_training_plan(chart, own, 1 if chart.name in (HELD_OUT, COMPLETIONS.name) else smooth))
    return plans


def _of_completions(methods: Sequence[Method], completions: Mapping[str, Completions]) -> list[Method]:
    """Return the methods with the runs that have completions, whose logs are the measures of these."""
    kept = [[run for run in method.runs if str(run.folder) in completions] for method in methods]
    return [
        replace(method, runs=[completions_history(run, completions[str(run.folder)]) for run in runs])
        for method, runs in zip(methods, kept, strict=True)
        if runs
    ]


def result_plans(results: Sequence[EvalResult], methods: Sequence[Method]) -> list[Plan]:
    """Return the pictures of results of `trl-miner eval`, in the colors of the methods that they are of."""
    series = group_results(results, methods)
    more = []
    if any(len(own) > 1 for _, own in series):
        more.append("Where a line is the mean of several results: from the smallest to the largest of them.")
    has_levels = any(one.get("levels") for result in results for one in result.benchmarks.values())
    plans = []
    for name, (title, caption, draw) in SCORES.items() if results else ():
        is_crowded = len(series) > MOST_BANDS and name != "levels"
        own = [caption, *more, *([f"Bands are left out above {MOST_BANDS} lines."] if is_crowded else [])]
        if name != "levels" or has_levels:
            plans.append(Plan(name, title, " ".join(own), functools.partial(draw, results, methods=methods)))
    return plans


def _training_plan(chart: Chart, metrics: Metrics, smooth: int) -> Plan:
    caption = [chart.caption]
    if any(len(method.runs) > 1 for method in metrics.methods):
        caption.append("Line: mean over the runs of a method.")
        if len(metrics.methods) <= MOST_BANDS:
            caption.append("Band: from the smallest to the largest of them.")
        else:
            caption.append(f"Bands are left out above {MOST_BANDS} methods: give fewer runs to see them.")
    if smooth > 1:
        caption.append(f"Trailing mean over {smooth} logs of each run.")
    return Plan(chart.name, chart.title, " ".join(caption), lambda: draw_metrics(chart, metrics, smooth))
