"""The tables of `trl-miner report`, and that of `trl-miner compare`, which starts without numpy.

A *step* of the table of methods is one generation batch, as in the papers, however many optimizer steps it has.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..runs.history import RunHistory
from ..tables import Table
from .inputs import NOT_AVAILABLE, Method, baseline_of, every_setting, runs_of

if TYPE_CHECKING:
    from .frame import Metrics

_ROUNDING = 1e-9  # the mean of equal scores may be a little above each of them
_STEPS = "Steps to GRPO's best Pass@1"
_FORMS = {
    _STEPS: "{:.0f}",
    "Seconds per step": "{:.2f}",
    "Rollouts generated": "{:,.0f}",
    "Rollouts with a gradient": "{:.1%}",
}
_LOGGED = {  # of the table of runs, by title
    "Pass@1, held out": "eval:pass@1",
    "Reward": "reward",
    "Entropy": "entropy",
    "KL": "kl",
    "Prompts all right": "groups/ph",
    "Rollouts with a gradient": "rollouts/used",
    "Rollouts recovered": "rollouts/recovered",
    "Cap binds": "miner/cap_binds",
    "Factor on PH advantages": "miner/scale",
    "Seconds": "step_time",
}
METRICS = [*_LOGGED.values()]


def spread_text(values: Iterable[float | None], form: str) -> str:
    """Return "mean ± sample standard deviation" of the known values."""
    known = [value for value in values if value is not None]
    if not known:
        return NOT_AVAILABLE
    mean = form.format(statistics.fmean(known))
    return mean if len(known) < 2 else f"{mean} ± {form.format(statistics.stdev(known))}"


def counted(count: int, thing: str) -> str:
    """Return "1 run" or "2 runs"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def is_scored(run: RunHistory) -> bool:
    """Return whether a run is finished and has a Pass@1 wherever it was scored."""
    return run.finished and bool(run.scores) and all("pass@1" in scores for scores in run.scores.values())


def final_scores(run: RunHistory) -> Mapping[str, float]:
    """Return the last scores on held-out problems; empty: there are none."""
    return run.scores[max(run.scores)] if run.scores else {}


def mean_step_time(run: RunHistory) -> float | None:
    """Return the mean seconds of an optimizer step over the logs, without the scoring; None: not recorded."""
    known = [seconds for _, seconds in run.values("step_time") if seconds == seconds]  # NaN: no finite number
    return statistics.fmean(known) if known else None


def methods_table(methods: Mapping[str, Sequence[RunHistory | None]]) -> Table:
    """Return the table with a row for each method, of its runs; None is a run that was not scored after training."""
    runs = {label: [run for run in own if run is not None] for label, own in methods.items()}
    baseline = baseline_of(runs)
    target = None if baseline is None else _target(runs[baseline])
    ks = [int(name.split("@")[1]) for own in runs.values() for run in own for name in final_scores(run)]
    forms = dict.fromkeys(("Pass@1", f"Pass@{max(ks, default=1)}"), "{:.3f}") | _FORMS
    rows = []
    for label, own in runs.items():
        numbers = [_numbers(run, target) for run in own]
        cells = {title: spread_text([one.get(title) for one in numbers], form) for title, form in forms.items()}
        if target is not None and own:
            reached = sum(one[_STEPS] is not None for one in numbers)
            shown = cells[_STEPS] if reached else "not reached"
            cells[_STEPS] = shown if reached == len(own) else f"{shown} ({reached} of {len(own)})"
        of = "" if len(own) == len(methods[label]) else f" of {len(methods[label])}"
        rows.append([label, f"{len(own)}{of}", *cells.values()])
    notes = [
        "Mean ± sample standard deviation over the seeds. Pass@k after training, on the held-out problems. A step is "
        "one generation batch."
    ]
    if target is None:
        notes.append(f"{_STEPS} are {NOT_AVAILABLE}: no finished run is plain GRPO.")
    else:
        notes.append(
            f"GRPO's best Pass@1: {target[1]:.3f}, the best mean over the runs of {baseline} at a scored step "
            f"(step {target[0]:.0f}). Each run counts with its first scored step at or above it; 0 is before training."
        )
    return Table("Methods", ["Method", "Runs", *forms], rows, notes)


def _numbers(run: RunHistory, target: tuple[float, float] | None) -> dict[str, float | None]:
    """Return the numbers of one run by column; None: not recorded, or not reached."""
    per_step, seconds = run.per_step or 1.0, mean_step_time(run)
    generated, used = (_last(run, f"rollouts/{name}_total") for name in ("generated", "used"))
    best = float("inf") if target is None else target[1] - _ROUNDING
    reached = [step / per_step for step, scores in run.scores.items() if scores["pass@1"] >= best]
    return {
        **{name.capitalize(): score for name, score in final_scores(run).items()},
        _STEPS: min(reached, default=None),
        "Seconds per step": None if seconds is None else seconds * per_step,
        "Rollouts generated": generated,  # those that dynamic sampling dropped included
        "Rollouts with a gradient": used / generated if generated and used is not None else None,
    }


def _target(runs: Sequence[RunHistory]) -> tuple[float, float]:
    """Return the step of the best mean of the runs' Pass@1, of those at which all of them were scored, and that."""
    scores = [{step / (run.per_step or 1.0): own["pass@1"] for step, own in run.scores.items()} for run in runs]
    steps = sorted(set.intersection(*map(set, scores)))
    means = {step: statistics.fmean(own[step] for own in scores) for step in steps}
    best = max(means, key=lambda step: means[step])  # the first of equals
    return best, means[best]


def _last(run: RunHistory, metric: str) -> float | None:
    known = [value for _, value in run.values(metric) if value == value]  # NaN where it is no finite number
    return known[-1] if known else None


def settings_table(methods: Sequence[Method]) -> Table | None:
    """Return the settings in which methods differ, a row each; None: there are none."""
    known = {method.label: every_setting(method.runs[0]) for method in methods if method.runs[0].settings}
    names = sorted({name for own in known.values() for name in own})
    rows = [[name, *(own.get(name, "default").removesuffix(".0") for own in known.values())] for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Table("Settings that differ", ["Setting", *known], rows, is_text=True) if rows else None


def runs_table(metrics: "Metrics") -> Table | None:
    """Return how far each run went, and what it logged at first and at last; None: there are no runs."""
    logged = metrics.rows[metrics.rows["metric"].isin(METRICS)].dropna(subset="value")
    ends = logged.groupby(["run", "metric"], observed=True)["value"].agg(["first", "last"])
    shown = {place: f"{first:.4g} → {last:.4g}" for place, (first, last) in zip(ends.index, ends.values, strict=True)}
    known = {title: metric for title, metric in _LOGGED.items() if metric in metrics.known}
    rows = [
        [run.name, steps_done(run) + ", unfinished" * (not run.finished)]
        + [shown.get((run.name, metric), NOT_AVAILABLE) for metric in known.values()]
        for _, run in runs_of(metrics.methods)
    ]
    notes = [
        "First → last logged value. Steps and seconds of an optimizer step; entropy and KL in nats per completion "
        "token; prompts, rollouts and cap as shares."
    ]
    return Table("Runs", ["Run", "Steps", *known], rows, notes) if rows else None


def steps_done(run: RunHistory) -> str:
    """Return the steps of a run, and of how many."""
    return f"{run.steps} of {run.planned}" if run.planned else str(run.steps)
