"""Pictures of Pass@K after training, problem by problem: against K, and of each method against GRPO."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..evaluation.metrics import powers_of_two
from ..text import for_picture
from .charts import AGAINST, BY_K, Panel
from .curves import plan_chart
from .figures import INK, finish_axes, new_figure, style
from .frame import SAMPLES, Metrics, as_rows
from .grouping import Method
from .held_out_tables import ComparableRuns, Comparison, after, before, compare_with, families, ks_of, pass_at
from .pages import Plan

_SIGNIFICANT = 0.05


def held_out_plans(scored: ComparableRuns) -> list[Plan]:
    """Return the pictures of a report that these runs have."""
    if not scored.ranges:  # each problem has an answer without a verdict
        return []
    plans = [plan_by_k(scored)] if scored.largest_k > 1 else []
    reference = next(iter(families(scored)), None)
    if reference is not None:
        title, caption = AGAINST.title.format(reference), AGAINST.caption.format(reference)
        plans.append(Plan(AGAINST.name, title, caption, lambda: draw_against(scored)))
    return plans


def plan_by_k(scored: ComparableRuns) -> Plan:
    """Return the picture of Pass@K against K before and after training, one panel for each range of levels."""
    methods = list(scored.methods.values())
    runs = [run for method in methods for run in method.runs]
    parts = [(method.label, run.name, run.seed, after(run)) for method in methods for run in method.runs]
    parts += [("before training", run.name, run.seed, moment) for run in runs if (moment := before(run))]
    keys, points = [], []
    for name, places in scored.ranges.items():
        for label, run_name, seed, moment in parts:
            ks = powers_of_two(min(moment.num_samples, scored.largest_k))
            keys.append((name, label, run_name, seed))
            points.append([(k, pass_at(moment, k, places).mean()) for k in ks])
    panels = tuple(Panel(name, for_picture(name.capitalize()), "share of problems") for name in scored.ranges)
    drawn = [*methods, Method("before training", [], style_index=-1)]
    return plan_chart(replace(BY_K, panels=panels), Metrics(drawn, as_rows(keys, points), SAMPLES))


def draw_against(scored: ComparableRuns) -> Any:
    """Draw the first of `families`: differences from GRPO with their 95 % intervals, by range of levels and K."""
    reference, others = next(iter(families(scored).items()))
    ks = ks_of(scored)
    parts = [(name, places, k) for name, places in scored.ranges.items() for k in ks]
    size = (6.6 if len(ks) == 1 else 10.0, len(scored.ranges) * (1.1 + 0.24 * max(3, len(others))))
    figure, panels = new_figure(len(parts), columns=len(ks), size=size)
    for axes, (name, places, k) in zip(panels, parts, strict=True):
        compared = compare_with(scored, reference, others, places, k)
        _draw_intervals(axes, compared, [scored.methods[one.method].style_index for one in compared])
        axes.set_yticks(range(len(compared)), [for_picture(one.method, 30) for one in compared], color=INK)
        axes.set_ylim(len(compared) - 0.5, -0.5)
        panel = Panel("", for_picture(f"Pass@{k}, {name}"), unit="")
        finish_axes(axes, panel, f"points above {for_picture(reference)}")
    return figure


def _draw_intervals(axes: Any, compared: Sequence[Comparison], indices: Sequence[int]) -> None:
    axes.axvline(0, color=INK, linewidth=1.0)
    for at, (one, index) in enumerate(zip(compared, indices, strict=True)):
        color, _ = style(index)
        middle, low, high = (100 * value for value in (one.effect.difference, one.effect.low, one.effect.high))
        is_sure = one.adjusted is not None and one.adjusted < _SIGNIFICANT and not one.of_one_seed
        if one.adjusted is not None:
            axes.plot([low, high], [at, at], color=color, linewidth=1.6)
        face = color if is_sure else "none"
        axes.plot(middle, at, "o", color=color, markersize=6, markerfacecolor=face, markeredgewidth=1.4)
