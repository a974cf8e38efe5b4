"""Pass@K on held-out problems, problem by problem: each method, against GRPO, and MINER's variants against MINER."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..evaluation.metrics import pass_at_k, powers_of_two
from ..runs.held_out import HeldOut, Moment
from ..runs.history import RunHistory
from ..tables import Table
from ..text import for_picture
from .cells import NOT_AVAILABLE, show_spread, spread
from .charts import AGAINST, BY_K, Panel
from .curves import plan_chart
from .effects import TEST, Effect, crossed_difference, holm
from .figures import INK, finish_axes, new_figure, style
from .frame import SAMPLES, Metrics, as_rows
from .grouping import Method, ablation_base, baseline_of, is_ablation, is_whole_miner
from .pages import Plan

_SIGNIFICANT = 0.05
_SHOWN = (1, 4, 16, 64)  # K of the table, and the largest that all runs have


@dataclass(frozen=True)
class ComparableRuns:
    """Finished runs that were scored on the same problems: methods by label with those of their runs, places of the
    problems by range of levels, the largest K that every run has samples for, runs scored on other problems, and the
    number of problems that some run has unscored samples of, which are in no range."""

    methods: Mapping[str, Method]
    baseline: str | None
    ranges: Mapping[str, Sequence[int]]
    largest_k: int
    left_out: Sequence[str]
    num_unscored: int = 0

    @property
    def miner(self) -> str | None:
        """The label of MINER, of several with other knobs the one called miner; None: it is not there."""
        labels = [label for label, method in self.methods.items() if is_whole_miner(method.runs[0])]
        return "miner" if "miner" in labels else next(iter(labels), None)


@dataclass(frozen=True)
class Comparison:
    """One method against another, in one range of levels, by one Pass@K, with p adjusted for all methods there."""

    method: str
    effect: Effect
    adjusted: float | None

    @property
    def of_one_seed(self) -> bool:
        """Whether interval and p cover problems alone: they say nothing of other seeds of these methods."""
        return self.effect.num_seeds == 1


def scored_alike(methods: Sequence[Method]) -> ComparableRuns | None:
    """Return the runs that may be compared problem by problem; None: no run recorded its counts."""
    having = [
        replace(method, runs=own)
        for method in methods
        if (own := [run for run in method.runs if run.finished and run.held_out is not None and run.held_out.after])
    ]
    if not having:
        return None
    baseline = baseline_of(having)
    reference = _counts((baseline or having[0]).runs[0])
    finished = [run for method in having for run in method.runs]
    left_out = [run.name for run in finished if _problems(_counts(run)) != _problems(reference)]
    alike = [replace(method, runs=[run for run in method.runs if run.name not in left_out]) for method in having]
    alike = [method for method in alike if method.runs]
    runs = [run for method in alike for run in method.runs]
    moments = [moment for run in runs for moment in (before(run), after(run)) if moment]
    whole = set.intersection(*(moment.whole for moment in moments))
    ranges = {name: [place for place in places if place in whole] for name, places in reference.ranges().items()}
    return ComparableRuns(
        methods={method.label: method for method in alike},
        baseline=None if baseline is None else baseline.label,
        ranges={name: places for name, places in ranges.items() if places},
        largest_k=min(after(run).num_samples for run in runs),
        left_out=left_out,
        num_unscored=len(moments[0].num_correct) - len(whole),
    )


def after(run: RunHistory) -> Moment:
    """Return the scoring after training of a run of `scored_alike`."""
    moment = _counts(run).after
    assert moment is not None
    return moment


def before(run: RunHistory) -> Moment | None:
    """Return the scoring before training, if there was one."""
    return _counts(run).moments.get("before")


def pass_at(moment: Moment, k: int, places: Sequence[int]) -> Any:
    """Return (P,) Pass@K of the problems at these places."""
    return pass_at_k(moment.num_samples, [moment.num_correct[place] for place in places], k)


def ks_of(scored: ComparableRuns) -> list[int]:
    """Return 1 and the largest K."""
    return sorted({1, scored.largest_k})


def families(scored: ComparableRuns) -> dict[str, list[str]]:
    """Return what is compared with what: other methods with GRPO, MINER's ablations with MINER. All share a seed."""
    compared = {}
    if scored.baseline is not None:
        compared[scored.baseline] = [label for label in scored.methods if label != scored.baseline]
    if (miner := scored.miner) is not None:
        base = ablation_base(scored.methods[miner].runs[0])
        compared[miner] = [
            label
            for label, method in scored.methods.items()
            if is_ablation(method.runs[0]) and ablation_base(method.runs[0]) == base
        ]
    for reference, others in compared.items():
        compared[reference] = [label for label in others if _paired_runs(scored, label, reference)]
    return {reference: others for reference, others in compared.items() if others}


def compare_with(
    scored: ComparableRuns, reference: str, others: Sequence[str], places: Sequence[int], k: int
) -> list[Comparison]:
    """Compare each of several methods with a reference by Pass@K, and adjust p for their number."""
    effects = {}
    for label in others:
        pairs = _paired_runs(scored, label, reference)
        tables = [[pass_at(after(run), k, places) for run in runs] for runs in zip(*pairs, strict=True)]
        effects[label] = crossed_difference(*tables)
    known = [label for label, effect in effects.items() if not math.isnan(effect.p_value)]
    adjusted = dict(zip(known, holm([effects[label].p_value for label in known]), strict=True))
    return [Comparison(label, effect, adjusted.get(label)) for label, effect in effects.items()]


def against_tables(scored: ComparableRuns) -> list[Table]:
    """Return differences in points with intervals and p, one table for each family and range of levels."""
    tables, ks = [], ks_of(scored)
    header = ["Method", "Seeds", *(title for k in ks for title in (f"Pass@{k}, points", "p", "p, Holm"))]
    for reference, others in families(scored).items():
        for name, places in scored.ranges.items():
            columns = [compare_with(scored, reference, others, places, k) for k in ks]
            rows = [
                [row[0].method, str(row[0].effect.num_seeds), *(cell for one in row for cell in _cells(one))]
                for row in zip(*columns, strict=True)
            ]
            notes = _against_notes(scored, reference, [one.effect for one in columns[0]])
            tables.append(Table(f"Against {reference}, {name}", header, rows, notes))
    return tables


def pass_tables(scored: ComparableRuns) -> list[Table]:
    """Return Pass@K for a few K by method, after training and before it, one table for each range of levels."""
    ks = sorted({k for k in _SHOWN if k <= scored.largest_k} | {scored.largest_k})
    runs = [run for method in scored.methods.values() for run in method.runs]
    untrained = [moment for run in runs if (moment := before(run))]
    moments = {"(before training)": untrained} if untrained else {}
    moments |= {label: [after(run) for run in method.runs] for label, method in scored.methods.items()}
    tables = []
    for name, places in scored.ranges.items():
        rows = [[label, str(len(own)), *(_pass_cell(own, places, k) for k in ks)] for label, own in moments.items()]
        notes = [
            f"{len(places)} problems. Percent, mean ± sample standard deviation over the runs; Pass@K unbiased, from "
            f"all samples of each problem."
        ]
        if scored.num_unscored:
            notes.append(f"Left out, with unscored samples in some run: {scored.num_unscored} problems.")
        if untrained:
            notes.append("Before training: all runs. Where it had fewer samples, a larger K is n/a.")
        tables.append(Table(f"Pass@K, {name}", ["Method", "Runs", *(f"Pass@{k}" for k in ks)], rows, notes))
    return tables


def _pass_cell(moments: Sequence[Moment], places: Sequence[int], k: int) -> str:
    scores = [100 * float(pass_at(one, k, places).mean()) for one in moments if k <= one.num_samples]
    return show_spread(spread(scores), "{:.1f}")


def _cells(one: Comparison) -> list[str]:
    effect = one.effect
    shown = f"{100 * effect.difference:+.2f}"
    if one.adjusted is None:
        return [shown, NOT_AVAILABLE, NOT_AVAILABLE]
    interval = f"{shown} ({100 * effect.low:+.2f} to {100 * effect.high:+.2f})"
    return [interval, *("under 0.001" if p < 0.001 else f"{p:.3f}" for p in (effect.p_value, one.adjusted))]


def _against_notes(scored: ComparableRuns, reference: str, effects: Sequence[Effect]) -> list[str]:
    notes = [
        f"Percentage points after training: the method's Pass@K minus that of {reference}, paired by seed and "
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


def _paired_runs(scored: ComparableRuns, first: str, second: str) -> list[tuple[RunHistory, RunHistory]]:
    """Return the runs of two methods by the seeds that both have, of each seed the first run."""
    by_seed = [
        {run.seed: run for run in reversed(scored.methods[label].runs) if run.seed is not None}
        for label in (first, second)
    ]
    return [(by_seed[0][seed], by_seed[1][seed]) for seed in sorted(by_seed[0].keys() & by_seed[1].keys())]


def _counts(run: RunHistory) -> HeldOut:
    assert run.held_out is not None
    return run.held_out


def _problems(counts: HeldOut) -> Any:
    return counts.fingerprint, counts.levels, len(next(iter(counts.moments.values())).num_correct)


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
