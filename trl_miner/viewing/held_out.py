"""Pass@K on held-out problems, problem by problem: each method, and its difference from GRPO."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..evaluation.metrics import pass_at_k, powers_of_two
from ..runs.held_out import BEFORE, HeldOut, Moment
from ..runs.history import RunHistory
from ..tables import Table
from ..text import for_picture
from .cells import NOT_AVAILABLE, spread_text
from .charts import AGAINST, BY_K, Panel
from .drawing import plan_chart
from .effects import TEST, Effect, crossed_difference, holm
from .figures import INK, finish_axes, new_figure, style
from .frame import SAMPLES, Metrics, as_rows
from .grouping import Method, baseline_of, methods_with
from .pages import Plan

if TYPE_CHECKING:
    from pandas import DataFrame

_UNTRAINED = "(before training)"
_SIGNIFICANT = 0.05
_SHOWN = (1, 4, 16, 64)  # K of the table, and the largest that all runs have


@dataclass(frozen=True)
class ComparableRuns:
    """Finished runs that were scored on the same problems: methods with those of their runs, the label of GRPO, places
    of the problems by range of levels, the largest K that every run has samples for, runs scored on other problems,
    and the number of problems that some run has unscored samples of, which are in no range."""

    methods: Sequence[Method]
    baseline: str | None
    ranges: Mapping[str, Sequence[int]]
    largest_k: int
    left_out: Sequence[str]
    num_unscored: int


@dataclass(frozen=True)
class Comparison:
    """One method against the baseline, in a range of levels, by one Pass@K, with p adjusted for all methods there."""

    method: Method
    problems: str
    k: int
    effect: Effect
    adjusted: float | None

    @property
    def of_one_seed(self) -> bool:
        """Whether interval and p cover problems alone: they say nothing of other seeds of these methods."""
        return self.effect.num_seeds == 1


def scored_alike(methods: Sequence[Method]) -> ComparableRuns | None:
    """Return the runs that may be compared problem by problem; None: no run recorded its counts."""
    finished = [r for m in methods for r in m.runs if r.finished and r.held_out is not None and r.held_out.after]
    if not finished:
        return None
    having = methods_with(methods, {str(run.folder) for run in finished})
    baseline = baseline_of({method.label: method.runs for method in having})
    reference = next(method for method in having if baseline in (None, method.label)).runs[0]
    alike = [run for run in finished if _problems(run) == _problems(reference)]
    moments = [moment for run in alike for moment in (_before(run), _after(run)) if moment]
    whole = set.intersection(*(moment.whole for moment in moments))
    ranges = {name: [place for place in own if place in whole] for name, own in _counts(reference).ranges().items()}
    return ComparableRuns(
        methods=methods_with(having, {str(run.folder) for run in alike}),
        baseline=baseline,
        ranges={name: places for name, places in ranges.items() if places},
        largest_k=min(_after(run).num_samples for run in alike),
        left_out=[run.name for run in finished if run not in alike],
        num_unscored=len(moments[0].num_correct) - len(whole),
    )


def comparisons(scored: ComparableRuns) -> list[Comparison]:
    """Compare with GRPO each method that shares a seed with it, by range of levels and K: 1 and the largest."""
    reference = next((method for method in scored.methods if method.label == scored.baseline), None)
    if reference is None:
        return []
    pairs = {method.label: _paired_runs(method, reference) for method in scored.methods if method is not reference}
    others = [method for method in scored.methods if pairs.get(method.label)]
    found = []
    for name, places in scored.ranges.items():
        for k in sorted({1, scored.largest_k}):
            effects = []
            for method in others:
                tables = [
                    [_pass_at(_after(run), k, places) for run in own] for own in zip(*pairs[method.label], strict=True)
                ]
                effects.append(crossed_difference(*tables))
            known = [effect.p_value for effect in effects if not math.isnan(effect.p_value)]
            adjusted = iter(holm(known))
            for method, effect in zip(others, effects, strict=True):
                p = None if math.isnan(effect.p_value) else next(adjusted)
                found.append(Comparison(method, name, k, effect, p))
    return found


def against_tables(scored: ComparableRuns, compared: Sequence[Comparison]) -> list[Table]:
    """Return differences in points with intervals and p, one table for each range of levels."""
    ks = list(dict.fromkeys(one.k for one in compared))
    header = ["Method", "Seeds", *(title for k in ks for title in (f"Pass@{k}, points", "p", "p, Holm"))]
    tables = []
    for name in dict.fromkeys(one.problems for one in compared):
        rows: dict[str, list[str]] = {}
        own = [one for one in compared if one.problems == name]
        for one in own:
            cells = rows.setdefault(one.method.label, [one.method.label, str(one.effect.num_seeds)])
            cells += _cells(one)
        notes = _against_notes(scored, [one.effect for one in own if one.k == ks[0]])
        tables.append(Table(f"Against {scored.baseline}, {name}", header, [*rows.values()], notes))
    return tables


def pass_rows(scored: ComparableRuns) -> "DataFrame":
    """Return tidy rows of Pass@K after training, and of all runs before it: by range of levels and K."""
    every = [(method.label, run) for method in scored.methods for run in method.runs]
    parts = [(_UNTRAINED, run, moment) for _, run in every if (moment := _before(run))]
    parts += [(label, run, _after(run)) for label, run in every]
    keys, points = [], []
    for name, places in scored.ranges.items():
        for label, run, moment in parts:
            ks = powers_of_two(min(moment.num_samples, scored.largest_k))
            keys.append((name, label, run.name, run.seed))
            points.append(np.array([(k, _pass_at(moment, k, places).mean()) for k in ks]))
    return as_rows(keys, points)


def pass_tables(scored: ComparableRuns, rows: "DataFrame") -> list[Table]:
    """Return Pass@K for a few K by method, after training and before it, one table for each range of levels."""
    ks = sorted({k for k in _SHOWN if k <= scored.largest_k} | {scored.largest_k})
    tables = []
    for name, places in scored.ranges.items():
        cells = []
        for label, own in rows[rows["metric"] == name].groupby("method", observed=True, sort=False):
            scores = [spread_text(100 * own.loc[own["step"] == k, "value"], "{:.1f}") for k in ks]
            cells.append([label, str(own["run"].nunique()), *scores])
        notes = [
            f"{len(places)} problems. Percent, mean ± sample standard deviation over the runs; Pass@K unbiased, from "
            f"all samples of each problem. Where there were fewer samples before training, a larger K is n/a."
        ]
        if scored.num_unscored:
            notes.append(f"Left out, with unscored samples in some run: {scored.num_unscored} problems.")
        tables.append(Table(f"Pass@K, {name}", ["Method", "Runs", *(f"Pass@{k}" for k in ks)], cells, notes))
    return tables


def held_out_plans(scored: ComparableRuns, compared: Sequence[Comparison], rows: "DataFrame") -> list[Plan]:
    """Return the pictures of a report that these runs have."""
    plans = []
    if scored.largest_k > 1 and scored.ranges:
        panels = tuple(Panel(name, for_picture(name.capitalize()), "share of problems") for name in scored.ranges)
        drawn = [*scored.methods, Method(_UNTRAINED, [], style_index=-1)]
        plans.append(plan_chart(replace(BY_K, panels=panels), Metrics(drawn, rows, SAMPLES)))
    if compared:
        title, caption = (text.format(scored.baseline) for text in (AGAINST.title, AGAINST.caption))
        plans.append(Plan(AGAINST.name, title, caption, lambda: draw_against(scored, compared)))
    return plans


def draw_against(scored: ComparableRuns, compared: Sequence[Comparison]) -> Any:
    """Draw the differences from GRPO with their 95 % intervals, by range of levels and K."""
    parts = dict.fromkeys((one.problems, one.k) for one in compared)
    num_columns, num_methods = len({k for _, k in parts}), len(compared) // len(parts)
    size = (6.6 if num_columns == 1 else 10.0, len(parts) / num_columns * (1.1 + 0.24 * max(3, num_methods)))
    figure, panels = new_figure(len(parts), columns=num_columns, size=size)
    for axes, (name, k) in zip(panels, parts, strict=True):
        own = [one for one in compared if (one.problems, one.k) == (name, k)]
        axes.axvline(0, color=INK, linewidth=1.0)
        for at, one in enumerate(own):
            _draw_interval(axes, at, one)
        axes.set_yticks(range(len(own)), [for_picture(one.method.label, 30) for one in own], color=INK)
        axes.set_ylim(len(own) - 0.5, -0.5)
        panel = Panel("", for_picture(f"Pass@{k}, {name}"), unit="")
        finish_axes(axes, panel, f"points above {for_picture(scored.baseline)}")
    return figure


def _draw_interval(axes: Any, at: int, one: Comparison) -> None:
    color, _ = style(one.method.style_index)
    middle, low, high = (100 * value for value in (one.effect.difference, one.effect.low, one.effect.high))
    is_sure = one.adjusted is not None and one.adjusted < _SIGNIFICANT and not one.of_one_seed
    if one.adjusted is not None:
        axes.plot([low, high], [at, at], color=color, linewidth=1.6)
    face = color if is_sure else "none"
    axes.plot(middle, at, "o", color=color, markersize=6, markerfacecolor=face, markeredgewidth=1.4)


def _cells(one: Comparison) -> list[str]:
    effect = one.effect
    shown = f"{100 * effect.difference:+.2f}"
    if one.adjusted is None:
        return [shown, NOT_AVAILABLE, NOT_AVAILABLE]
    interval = f"{shown} ({100 * effect.low:+.2f} to {100 * effect.high:+.2f})"
    return [interval, *("under 0.001" if p < 0.001 else f"{p:.3f}" for p in (effect.p_value, one.adjusted))]


def _against_notes(scored: ComparableRuns, effects: Sequence[Effect]) -> list[str]:
    notes = [
        f"Percentage points after training: the method's Pass@K minus that of {scored.baseline}, paired by seed and "
        f"problem; above 0 the method is better. In brackets: 95 % interval. {effects[0].num_problems} problems, and "
        f"the seeds that both have.",
        f"p: {TEST}. p, Holm: adjusted for the {len(effects)} comparisons of its column, which are one family.",
    ]
    seeds = {effect.num_seeds for effect in effects}
    if 1 in seeds:
        notes.append("With 1 seed, interval and p are over the problems alone: other seeds may give another result.")
    if 2 in seeds:
        notes.append("With 2 seeds, p is too small at times: below 0.05 by chance in up to 10 % of comparisons.")
    if scored.left_out:
        notes.append(f"Left out, scored on other problems: {', '.join(scored.left_out)}.")
    return notes


def _paired_runs(first: Method, second: Method) -> list[tuple[RunHistory, RunHistory]]:
    """Return the runs of two methods by the seeds that both have, of each seed the first run."""
    one, other = (
        {run.seed: run for run in reversed(method.runs) if run.seed is not None} for method in (first, second)
    )
    return [(one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())]


def _counts(run: RunHistory) -> HeldOut:
    assert run.held_out is not None
    return run.held_out


def _after(run: RunHistory) -> Moment:
    moment = _counts(run).after
    assert moment is not None
    return moment


def _before(run: RunHistory) -> Moment | None:
    return _counts(run).moments.get(BEFORE)


def _problems(run: RunHistory) -> Any:
    counts = _counts(run)
    return counts.fingerprint, counts.levels, len(_after(run).num_correct)


def _pass_at(moment: Moment, k: int, places: Sequence[int]) -> Any:
    """Return (P,) Pass@K of the problems at these places."""
    return pass_at_k(moment.num_samples, [moment.num_correct[place] for place in places], k)
