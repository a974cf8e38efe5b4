"""Pass@K on held-out problems, problem by problem: each method, its difference from GRPO, and the
verdict on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.tables import Table
from ..evaluation.metrics import effect_text, interval_text, pass_at_k
from ..runs.held_out import AFTER, BEFORE, Moment
from ..runs.history import RunHistory
from .effects import TEST, Effect, crossed_difference, holm
from .inputs import Method, baseline_of, methods_with, runs_of
from .tables import counted, spread_text

_UNTRAINED = "(before training)"
_SHOWN = (1, 4, 16, 64)  # K of the table, and the largest that all runs have
_MOST = 3  # methods with a sentence each in the verdict, where none of them is called miner


@dataclass(frozen=True)
class ComparableRuns:
    """Finished runs that were scored on the same problems: methods with those of their runs, the
    label of GRPO, places of the problems by range of levels, the largest K that every run has
    samples for, runs scored on other problems, and the number of problems that some run has
    unscored samples of, which are in no range."""

    methods: Sequence[Method]
    baseline: str | None
    ranges: Mapping[str, Sequence[int]]
    largest_k: int
    left_out: Sequence[str]
    num_unscored: int


@dataclass(frozen=True)
class Comparison:
    """One method against the baseline, in a range of levels, by one Pass@K, with p adjusted for all
    methods there."""

    method: str
    problems: str
    k: int
    effect: Effect
    adjusted: float

    def in_words(self) -> str:
        """Return the difference, and what it shows."""
        interval = self.effect.difference, self.effect.low, self.effect.high
        if self.effect.num_seeds == 1:
            return f"{interval_text(*interval)} of problems: no verdict from one seed"
        return f"{effect_text(*interval, self.adjusted)} ({self.effect.num_seeds} seeds)"


def scored_alike(methods: Sequence[Method]) -> ComparableRuns | None:
    """Return the runs that may be compared problem by problem; None: no run recorded its counts."""
    finished = [
        run
        for _, run in runs_of(methods)
        if run.finished and run.held_out is not None and run.held_out.after
    ]
    if not finished:
        return None
    having = methods_with(methods, {str(run.folder) for run in finished})
    baseline = baseline_of({method.label: method.runs for method in having})
    reference = next(method for method in having if baseline in (None, method.label)).runs[0]
    alike = [run for run in finished if _problems(run) == _problems(reference)]
    moments = [
        moment for run in alike for name in (BEFORE, AFTER) if (moment := _moment(run, name))
    ]
    whole = set.intersection(*(moment.whole for moment in moments))
    counts: Any = reference.held_out
    ranges = {
        name: [place for place in own if place in whole] for name, own in counts.ranges().items()
    }
    return ComparableRuns(
        methods=methods_with(having, {str(run.folder) for run in alike}),
        baseline=baseline,
        ranges={name: places for name, places in ranges.items() if places},
        largest_k=min(_moment(run, AFTER).num_samples for run in alike),
        left_out=[run.name for run in finished if run not in alike],
        num_unscored=len(moments[0].num_correct) - len(whole),
    )


def comparisons(scored: ComparableRuns | None) -> list[Comparison]:
    """Compare with GRPO each method that shares a seed with it, by range of levels and K: 1 and the
    largest."""
    if scored is None or scored.baseline is None:
        return []
    by_seed = {
        method.label: {
            run.seed: _moment(run, AFTER) for run in reversed(method.runs) if run.seed is not None
        }
        for method in scored.methods
    }
    base = by_seed.pop(scored.baseline)
    seeds_of = {label: sorted(own.keys() & base.keys()) for label, own in by_seed.items()}
    labels = [label for label, seeds in seeds_of.items() if seeds]
    found = []
    for name, places in scored.ranges.items():
        for k in sorted({1, scored.largest_k}):
            effects = []
            for label in labels:
                own, other = (
                    [one[seed] for seed in seeds_of[label]] for one in (by_seed[label], base)
                )
                effects.append(
                    crossed_difference(_scores(own, k, places), _scores(other, k, places))
                )
            adjusted = holm([effect.p_value for effect in effects])
            for label, effect, p in zip(labels, effects, adjusted, strict=True):
                found.append(Comparison(label, name, k, effect, p))
    return found


# The verdict


def verdicts(
    methods: Sequence[Method], scored: ComparableRuns | None, compared: Sequence[Comparison]
) -> list[str]:
    """Return MINER's differences from GRPO, or those of some other methods; of one method what
    training changed."""
    if scored is not None and compared:
        return _against(scored.baseline, compared)
    if len(methods) == 1:
        return _before_and_after(methods[0])
    if not methods:
        return []
    return [
        "No verdict: it needs a finished run of plain GRPO, and another with its seed and held-out"
        " problems."
    ]


def _against(baseline: str | None, compared: Sequence[Comparison]) -> list[str]:
    labels = list(dict.fromkeys(one.method for one in compared))
    chosen = ["miner"] if "miner" in labels else labels[:_MOST]
    sentences = [
        f"{one.method} against {baseline}, Pass@{one.k} on {one.problems}: {one.in_words()}."
        for one in compared
        if one.method in chosen
    ]
    if others := len(labels) - len(chosen):
        sentences.append(
            f"{counted(others, 'other method')} against {baseline}: in the tables below."
        )
    return sentences


def _before_and_after(method: Method) -> list[str]:
    ends = [
        (run.scores[min(run.scores)], run.scores[max(run.scores)])
        for run in method.runs
        if len(run.scores) > 1
    ]
    names = [
        name
        for name in (ends[0][1] if ends else ())
        if all(name in score for pair in ends for score in pair)
    ]
    sentences = []
    for name in names:
        first, last = (
            spread_text([100 * pair[at][name] for pair in ends], "{:.1f}") for at in (0, 1)
        )
        of = f"{method.label}, {name.capitalize()} on held-out problems"
        before = min(min(run.scores) for run in method.runs if len(run.scores) > 1)
        when = f"at step {before:g}" if before else "before training"
        sentences.append(f"{of}: {first} % {when}, {last} % after.")
    return sentences or [
        "No verdict: no run was scored on held-out problems before and after. Set held_out."
    ]


# Tables


def against_tables(scored: ComparableRuns, compared: Sequence[Comparison]) -> list[Table]:
    """Return differences in points with intervals and p, one table for each range of levels."""
    ks = list(dict.fromkeys(one.k for one in compared))
    header = [
        "Method",
        "Seeds",
        *(title for k in ks for title in (f"Pass@{k}, points", "p", "p, Holm")),
    ]
    tables = []
    for name in dict.fromkeys(one.problems for one in compared):
        rows: dict[str, list[str]] = {}
        own = [one for one in compared if one.problems == name]
        for one in own:
            effect = one.effect
            middle, low, high = (100 * x for x in (effect.difference, effect.low, effect.high))
            points = f"{middle:+.2f} ({low:+.2f} to {high:+.2f})"
            ps = [
                "under 0.001" if p < 0.001 else f"{p:.3f}" for p in (effect.p_value, one.adjusted)
            ]
            rows.setdefault(one.method, [one.method, str(effect.num_seeds)]).extend([points, *ps])
        notes = _against_notes(scored, [one.effect for one in own if one.k == ks[0]])
        tables.append(Table(f"Against {scored.baseline}, {name}", header, [*rows.values()], notes))
    return tables


def _against_notes(scored: ComparableRuns, effects: Sequence[Effect]) -> list[str]:
    notes = [
        (
            f"Percentage points after training: Pass@K minus that of {scored.baseline}, paired by"
            " seed and problem; above 0 is better. In brackets: 95 % interval."
            f" {effects[0].num_problems} problems, and the seeds that both have."
        ),
        (
            f"p: {TEST}. p, Holm: adjusted for the {len(effects)} comparisons of its column, which"
            " are one family."
        ),
    ]
    seeds = {effect.num_seeds for effect in effects}
    if 1 in seeds:
        notes.append(
            "With 1 seed, interval and p are over the problems alone: other seeds may give another"
            " result."
        )
    if 2 in seeds:
        notes.append(
            "With 2 seeds, p is too small at times: below 0.05 by chance in up to 10 % of"
            " comparisons."
        )
    if scored.left_out:
        notes.append(f"Left out, scored on other problems: {', '.join(scored.left_out)}.")
    return notes


def pass_tables(scored: ComparableRuns) -> list[Table]:
    """Return Pass@K for a few K by method, after training and before it, one table for each range
    of levels."""
    ks = sorted({k for k in _SHOWN if k <= scored.largest_k} | {scored.largest_k})
    before = [moment for _, run in runs_of(scored.methods) if (moment := _moment(run, BEFORE))]
    after = {
        method.label: [_moment(run, AFTER) for run in method.runs] for method in scored.methods
    }
    tables = []
    for name, places in scored.ranges.items():
        rows = []
        for label, moments in [*([(_UNTRAINED, before)] if before else []), *after.items()]:
            scores = [
                [_scores([one], k, places).mean() for one in moments if one.num_samples >= k]
                for k in ks
            ]
            cells = [spread_text([100 * float(score) for score in own], "{:.1f}") for own in scores]
            rows.append([label, str(len(moments)), *cells])
        notes = [
            f"{len(places)} problems. Percent, mean ± sample standard deviation over the runs;"
            " Pass@K unbiased, from all samples of each problem. Where there were fewer samples"
            " before training, a larger K is n/a."
        ]
        if scored.num_unscored:
            notes.append(
                f"Left out, with unscored samples in some run: {scored.num_unscored} problems."
            )
        tables.append(
            Table(f"Pass@K, {name}", ["Method", "Runs", *(f"Pass@{k}" for k in ks)], rows, notes)
        )
    return tables


# One run


def _moment(run: RunHistory, name: str) -> Any:
    """Return a scoring of a run that counted its right answers; None: there is none of this
    name."""
    return run.held_out.moments.get(name)  # type: ignore[union-attr]


def _problems(run: RunHistory) -> Any:
    counts: Any = run.held_out
    return counts.fingerprint, counts.levels, len(counts.after.num_correct)


def _scores(moments: Sequence[Moment], k: int, places: Sequence[int]) -> np.ndarray:
    """Return (S, P) Pass@K of the problems at these places."""
    return np.array(
        [
            pass_at_k(moment.num_samples, [moment.num_correct[place] for place in places], k)
            for moment in moments
        ]
    )
