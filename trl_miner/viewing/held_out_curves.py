"""Pictures of the counts of right samples of each problem: Pass@K against K, and each method against GRPO."""

from collections.abc import Callable, Sequence
from typing import Any

from ..evaluation.metrics import powers_of_two
from ..runs.history import RunHistory
from ..text import for_picture
from .grouping import Method
from .held_out_tables import Comparison, Scored, after, compare_with, families, ks_of, miner_of, pass_at
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

BY_K, AGAINST = "held_out_by_k", "against_baseline"
_SIGNIFICANT = 0.05


def draw_by_k(scored: Scored) -> Any:
    """Pass@K against K after training, one panel for each range of levels.

    With many methods GRPO and MINER stand out, and the others are thin lines.

    Args:
        scored: Of `scored_alike`.

    Returns:
        The matplotlib figure.
    """
    ks = powers_of_two(scored.largest_k)
    chosen = highlighted(scored)
    figure, panels = new_figure(len(scored.ranges), len(chosen) + (len(chosen) < len(scored.methods)))
    for axes, (name, places) in zip(panels, scored.ranges.items(), strict=True):
        points_of = _pass_points(places, ks)
        own = {method.label: list(scored.runs[method.label]) for method in scored.methods}
        lines = {
            method.label: line
            for method in scored.methods
            if (line := method_line(Method(method.label, own[method.label], method.place), points_of)) is not None
        }
        draw_lines(axes, [line for label, line in lines.items() if label in chosen], panels=len(panels))
        _draw_behind(axes, [line for label, line in lines.items() if label not in chosen])
        scale_by_two(axes, ks)
        finish_axes(axes, title=for_picture(name.capitalize()), xlabel="K", ylabel="Pass@K", percent=True)
    add_legend(figure, panels)
    return figure


def highlighted(scored: Scored) -> list[str]:
    """The labels that stand out in `draw_by_k`: all where they are few, else GRPO and MINER if they are there."""
    if len(scored.methods) <= MOST_BANDS:
        return [method.label for method in scored.methods]
    labels = [method.label for method in scored.methods]
    return [label for label in labels if label in (scored.baseline, miner_of(scored))] or labels


def draw_against(scored: Scored) -> Any:
    """Differences from GRPO with their 95 % intervals: a panel for each range of levels and K.

    Args:
        scored: Of `scored_alike`, with something to compare: `families` gives the first.

    Returns:
        The matplotlib figure.
    """
    reference, others = next(iter(families(scored).items()))
    ks = ks_of(scored)
    place_of = {method.label: method.place for method in scored.methods}
    figure, panels = new_figure(len(scored.ranges) * len(ks), columns=len(ks))
    parts = [(name, places, k) for name, places in scored.ranges.items() for k in ks]
    for at, (axes, (name, places, k)) in enumerate(zip(panels, parts, strict=True)):
        compared = compare_with(scored, reference, others, places, k)
        _draw_intervals(axes, compared, place_of)
        labels = [for_picture(one.method, 30) for one in compared] if at % len(ks) == 0 else []
        axes.set_yticks(range(len(compared)), labels or [""] * len(compared), color=INK)
        axes.set_ylim(len(compared) - 0.5, -0.5)
        title = for_picture(f"Pass@{k}, {name}")
        finish_axes(axes, title=title, xlabel=f"points above {for_picture(reference)}", ylabel="")
    rows = len(scored.ranges)
    figure.set_size_inches(figure.get_size_inches()[0], rows * (1.1 + 0.24 * max(3, len(others))))
    return figure


def _pass_points(places: Sequence[int], ks: Sequence[int]) -> Callable[[RunHistory], list[tuple[float, float]]]:
    return lambda run: [(k, float(pass_at(after(run), k, places).mean())) for k in ks]


def _draw_behind(axes: Any, lines: Sequence[Line]) -> None:
    for at, line in enumerate(lines):
        label = None if at else f"{len(lines)} other methods"
        axes.plot(line.x, line.y, color=INK, alpha=0.3, linewidth=0.9, zorder=1, label=label)


def _draw_intervals(axes: Any, compared: Sequence[Comparison], place_of: dict[str, int]) -> None:
    axes.axvline(0, color=INK, linewidth=1.0)
    for at, one in enumerate(compared):
        color, _, marker = style(place_of[one.method])
        middle, low, high = (100 * value for value in (one.effect.difference, one.effect.low, one.effect.high))
        is_sure = one.adjusted is not None and one.adjusted < _SIGNIFICANT
        if one.adjusted is not None:
            axes.plot([low, high], [at, at], color=color, linewidth=1.6)
        axes.plot(
            [middle], [at], marker, color=color, markersize=6, markerfacecolor=color if is_sure else "none",
            markeredgewidth=1.4,
        )  # fmt: skip
