"""Pictures of Pass@K after training, problem by problem: against K, and of each method against GRPO."""

from collections.abc import Sequence
from typing import Any

from ..evaluation.metrics import powers_of_two
from ..runs.history import RunHistory
from ..text import for_picture
from .held_out_tables import Comparison, Scored, after, compare_with, families, ks_of, pass_at
from .lines import (
    INK,
    MOST_BANDS,
    Line,
    add_legend,
    draw_lines,
    finish_axes,
    method_line,
    new_figure,
    scale_by_two,
    style,
)
from .pages import Plan

BY_K, AGAINST = "held_out_by_k", "against_baseline"
_SIGNIFICANT = 0.05


def held_out_plans(scored: Scored) -> list[Plan]:
    """Return the pictures of a report that these runs have."""
    if not scored.ranges:  # each problem has an answer without a verdict
        return []
    plans = [_plan_by_k(scored)] if scored.largest_k > 1 else []
    reference = next(iter(families(scored)), None)
    if reference is not None:
        caption = (
            f"Pass@K of each method minus that of {reference}, in percentage points, with its 95 % interval over "
            f"seeds and problems; of one seed, over problems alone. Filled: several seeds, and p below 0.05 after "
            f"Holm's adjustment for the methods of the panel. Without a bar: no run differs at any problem."
        )
        plans.append(Plan(AGAINST, f"Differences from {reference}", caption, lambda: draw_against(scored)))
    return plans


def draw_by_k(scored: Scored) -> Any:
    """Draw Pass@K against K after training, one panel for each range of levels.

    With many methods GRPO and MINER stand out, and the others are thin lines.
    """
    ks = powers_of_two(scored.largest_k)
    chosen = highlighted(scored)
    figure, panels = new_figure(len(scored.ranges), len(chosen) + (len(chosen) < len(scored.methods)))
    for axes, (name, places) in zip(panels, scored.ranges.items(), strict=True):

        def points_of(run: RunHistory, places: Sequence[int] = places) -> list[tuple[float, float]]:
            return [(k, float(pass_at(after(run), k, places).mean())) for k in ks]

        every = [method_line(method, points_of) for method in scored.methods.values()]
        lines = [line for line in every if line is not None]
        draw_lines(axes, [line for line in lines if line.label in chosen], panels=len(panels))
        _draw_behind(axes, [line for line in lines if line.label not in chosen])
        scale_by_two(axes, ks)
        finish_axes(axes, title=for_picture(name.capitalize()), xlabel="K", ylabel="Pass@K", percent=True)
    add_legend(figure, panels)
    return figure


def highlighted(scored: Scored) -> list[str]:
    """Return the labels that stand out in `draw_by_k`: all where they are few, else GRPO's and MINER's."""
    labels = list(scored.methods)
    if len(labels) <= MOST_BANDS:
        return labels
    return [label for label in labels if label in (scored.baseline, scored.miner)] or labels


def draw_against(scored: Scored) -> Any:
    """Draw the first of `families`: differences from GRPO with their 95 % intervals, by range of levels and K."""
    reference, others = next(iter(families(scored).items()))
    ks = ks_of(scored)
    figure, panels = new_figure(len(scored.ranges) * len(ks), columns=len(ks))
    parts = [(name, places, k) for name, places in scored.ranges.items() for k in ks]
    for at, (axes, (name, places, k)) in enumerate(zip(panels, parts, strict=True)):
        compared = compare_with(scored, reference, others, places, k)
        _draw_intervals(axes, compared, [scored.methods[one.method].place for one in compared])
        is_first = at % len(ks) == 0
        labels = [for_picture(one.method, 30) if is_first else "" for one in compared]
        axes.set_yticks(range(len(compared)), labels, color=INK)
        axes.set_ylim(len(compared) - 0.5, -0.5)
        title = for_picture(f"Pass@{k}, {name}")
        finish_axes(axes, title=title, xlabel=f"points above {for_picture(reference)}", ylabel="")
    rows = len(scored.ranges)
    figure.set_size_inches(figure.get_size_inches()[0], rows * (1.1 + 0.24 * max(3, len(others))))
    return figure


def _plan_by_k(scored: Scored) -> Plan:
    caption = [
        "After training: the share of problems that at least one of K samples solves, the unbiased estimate from all "
        "samples. Logarithmic axis, base 2."
    ]
    if any(len(method.runs) > 1 for method in scored.methods.values()):
        caption.append("Line: mean over the runs of a method. Band: from the smallest to the largest of them.")
    chosen = highlighted(scored)
    if len(chosen) < len(scored.methods):
        caption.append(
            f"Above {MOST_BANDS} methods only {' and '.join(chosen)} stand out; the table of Pass@K has all."
        )
    return Plan(BY_K, "Pass@K on held-out problems, after training", " ".join(caption), lambda: draw_by_k(scored))


def _draw_behind(axes: Any, lines: Sequence[Line]) -> None:
    for at, line in enumerate(lines):
        label = None if at else f"{len(lines)} other methods"
        axes.plot(line.x, line.y, color=INK, alpha=0.3, linewidth=0.9, zorder=1, label=label)


def _draw_intervals(axes: Any, compared: Sequence[Comparison], places: Sequence[int]) -> None:
    axes.axvline(0, color=INK, linewidth=1.0)
    for at, (one, place) in enumerate(zip(compared, places, strict=True)):
        color, _, marker = style(place)
        middle, low, high = (100 * value for value in (one.effect.difference, one.effect.low, one.effect.high))
        is_sure = one.adjusted is not None and one.adjusted < _SIGNIFICANT and not one.of_one_seed
        if one.adjusted is not None:
            axes.plot([low, high], [at, at], color=color, linewidth=1.6)
        axes.plot(
            [middle],
            [at],
            marker,
            color=color,
            markersize=6,
            markerfacecolor=color if is_sure else "none",
            markeredgewidth=1.4,
        )
