"""Pass@K after training by method; problem by problem, each method against GRPO and MINER's variants against it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..evaluation.metrics import pass_at_k
from ..runs.held_out import HeldOut, Moment
from ..runs.history import RunHistory
from ..tables import Table
from .comparison import NOT_AVAILABLE, show_spread, spread
from .effects import TEST, Effect, crossed_difference, holm
from .grouping import Method, ablation_base, ablation_of, baseline_of

_SHOWN = (1, 4, 16, 64)  # K, beside the largest that all have


@dataclass(frozen=True)
class Scored:
    """Finished runs that were scored on the same problems.

    Attributes:
        runs: By label of the method, those of its runs; methods without one are not there.
        methods: Those that are there.
        baseline: The label of GRPO, if it is there.
        ranges: Places of the problems by range of levels.
        largest_k: The largest K that every run has samples for.
        left_out: Names of runs that were scored on other problems.
    """

    runs: Mapping[str, Sequence[RunHistory]]
    methods: Sequence[Method]
    baseline: str | None
    ranges: Mapping[str, Sequence[int]]
    largest_k: int
    left_out: Sequence[str]


@dataclass(frozen=True)
class Comparison:
    """One method against another, in one range of levels, by one Pass@K.

    Attributes:
        method: The label.
        effect: Difference in Pass@K, between -1 and 1.
        adjusted: p for as many comparisons as there are of this range and K.
    """

    method: str
    effect: Effect
    adjusted: float | None


def scored_alike(methods: Sequence[Method]) -> Scored | None:
    """The runs that may be compared problem by problem; None: no run recorded its counts."""
    having = {method.label: [run for run in method.runs if run.finished and _after(run)] for method in methods}
    baseline = baseline_of([method for method in methods if having[method.label]])
    first = baseline or next((method for method in methods if having[method.label]), None)
    if first is None:
        return None
    reference = _counts(having[first.label][0])
    left_out = [
        run.name for runs in having.values() for run in runs if _problems(_counts(run)) != _problems(reference)
    ]
    runs = {label: [run for run in own if run.name not in left_out] for label, own in having.items()}
    runs = {label: own for label, own in runs.items() if own}
    return Scored(
        runs=runs,
        methods=[method for method in methods if method.label in runs],
        baseline=None if baseline is None else baseline.label,
        ranges=reference.ranges(),
        largest_k=min(after(run).num_samples for own in runs.values() for run in own),
        left_out=left_out,
    )


def after(run: RunHistory) -> Moment:
    """The scoring after training of a run that `scored_alike` gave."""
    found = _after(run)
    if found is None:
        raise ValueError(f"{run.name} was not scored after training, problem by problem. Train it to its end.")
    return found


def pass_at(moment: Moment, k: int, places: Sequence[int]) -> Any:
    """Return (P,) Pass@K of the problems at these places."""
    return pass_at_k(moment.num_samples, [moment.num_correct[place] for place in places], k)


def ks_of(scored: Scored) -> list[int]:
    """1 and the largest K."""
    return sorted({1, scored.largest_k})


def families(scored: Scored) -> dict[str, list[str]]:
    """What is compared with what: each other method with GRPO, MINER's ablations with MINER. All share a seed."""
    found = {}
    if scored.baseline is not None:
        found[scored.baseline] = [label for label in scored.runs if label != scored.baseline]
    variants = {method.label: ablation_of(method.runs[0]) for method in scored.methods}
    miner = miner_of(scored)
    base = {method.label: ablation_base(method.runs[0]) for method in scored.methods}
    if miner is not None:
        found[miner] = [
            label
            for label, variant in variants.items()
            if variant not in (None, "MINER", "GRPO") and base[label] == base[miner]
        ]
    kept = {
        reference: [own for own in others if _shared(scored, own, reference)] for reference, others in found.items()
    }
    return {reference: others for reference, others in kept.items() if others}


def miner_of(scored: Scored) -> str | None:
    """The label of MINER, of several with other knobs the one called miner; None: it is not there."""
    found = [method.label for method in scored.methods if ablation_of(method.runs[0]) == "MINER"]
    return "miner" if "miner" in found else next(iter(found), None)


def compare_with(
    scored: Scored, reference: str, others: Sequence[str], places: Sequence[int], k: int
) -> list[Comparison]:
    """Each of several methods against a reference.

    Args:
        scored: Of `scored_alike`.
        reference: Label of the method that the others are held against.
        others: Theirs, which share a seed with it; of `families`.
        places: Of the problems.
        k: Of Pass@K.

    Returns:
        In the order of `others`; p adjusted for as many as there are.
    """
    effects = {}
    for label in others:
        pairs = _shared(scored, label, reference)
        tables = [[pass_at(after(run), k, places) for run in runs] for runs in zip(*pairs, strict=True)]
        effects[label] = crossed_difference(*tables)
    known = [label for label, effect in effects.items() if not math.isnan(effect.p_value)]
    adjusted = dict(zip(known, holm([effects[label].p_value for label in known]), strict=True))
    return [Comparison(label, effect, adjusted.get(label)) for label, effect in effects.items()]


def against_tables(scored: Scored) -> list[Table]:
    """One table for each family and range of levels: differences in percentage points, with intervals and p."""
    tables = []
    for reference, others in families(scored).items():
        for name, places in scored.ranges.items():
            columns = [compare_with(scored, reference, others, places, k) for k in ks_of(scored)]
            rows = [
                [row[0].method, str(row[0].effect.num_seeds), *(cell for one in row for cell in _cells(one))]
                for row in zip(*columns, strict=True)
            ]
            header = ["Method", "Seeds"]
            for k in ks_of(scored):
                header += [f"Pass@{k}, points", "p", "p, Holm"]
            notes = _against_notes(scored, reference, [one.effect for one in columns[0]])
            tables.append(Table(f"Against {reference}, {name}", header, rows, notes))
    return tables


def pass_tables(scored: Scored) -> list[Table]:
    """One table for each range of levels: Pass@K for a few K by method, after training, and before it."""
    ks = sorted({k for k in _SHOWN if k <= scored.largest_k} | {scored.largest_k})
    tables = []
    for name, places in scored.ranges.items():
        rows = []
        every = [_counts(run).moments for own in scored.runs.values() for run in own]
        before = [moments["before"] for moments in every if "before" in moments]
        if before:
            rows.append(["(before training)", str(len(before)), *_pass_cells(before, places, ks)])
        for label, own in scored.runs.items():
            rows.append([label, str(len(own)), *_pass_cells([after(run) for run in own], places, ks)])
        notes = [
            f"{len(places)} problems. Percent, mean ± sample standard deviation over the runs; Pass@K unbiased, from "
            f"all samples of each problem."
        ]
        if before:
            notes.append("Before training: all runs. Where it had fewer samples, a larger K is n/a.")
        tables.append(Table(f"Pass@K, {name}", ["Method", "Runs", *(f"Pass@{k}" for k in ks)], rows, notes))
    return tables


def _pass_cells(moments: Sequence[Moment], places: Sequence[int], ks: Sequence[int]) -> list[str]:
    cells = []
    for k in ks:
        found = [100 * float(pass_at(one, k, places).mean()) for one in moments if k <= one.num_samples]
        cells.append(show_spread(spread(found), "{:.1f}"))
    return cells


def _cells(one: Comparison) -> list[str]:
    effect = one.effect
    shown = f"{100 * effect.difference:+.2f}"
    if one.adjusted is None:
        return [shown, NOT_AVAILABLE, NOT_AVAILABLE]
    interval = f"{shown} ({100 * effect.low:+.2f} to {100 * effect.high:+.2f})"
    return [interval, show_p(effect.p_value), show_p(one.adjusted)]


def show_p(value: float) -> str:
    """Three digits behind the point."""
    return "under 0.001" if value < 0.001 else f"{value:.3f}"


def _against_notes(scored: Scored, reference: str, effects: Sequence[Effect]) -> list[str]:
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


def _shared(scored: Scored, first: str, second: str) -> list[tuple[RunHistory, RunHistory]]:
    """The runs of two methods by the seeds that both have."""
    one, other = _by_seed(scored.runs[first]), _by_seed(scored.runs[second])
    return [(one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())]


def _by_seed(runs: Sequence[RunHistory]) -> dict[int, RunHistory]:
    """The first run of each seed."""
    found: dict[int, RunHistory] = {}
    for run in runs:
        if run.seed is not None:
            found.setdefault(run.seed, run)
    return found


def _counts(run: RunHistory) -> HeldOut:
    assert run.held_out is not None
    return run.held_out


def _after(run: RunHistory) -> Moment | None:
    return None if run.held_out is None else run.held_out.after


def _problems(counts: HeldOut) -> Any:
    return counts.fingerprint, counts.levels, len(next(iter(counts.moments.values())).num_correct)
