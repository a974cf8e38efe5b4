"""The tables of `trl-miner report` and of `trl-miner compare`, which starts without numpy.

A *step* of the table of methods is one generation batch, as in the papers, however many optimizer steps it has.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs.files import read_parquet
from ..runs.history import RunHistory, number
from ..tables import Table
from ..text import one_line
from .inputs import NOT_AVAILABLE, EvalResult, Method, baseline_of, every_setting

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
_TEXTS = {"step", "prompt", "completion"}  # in every file of TRL; each other column is a reward function's, but for:
_NOT_REWARDS = _TEXTS | {"advantage", "images"}
_ENDS, _MEAN = ("first", "last"), ("mean",)
_LOGGED = {  # of the table of runs, by title: metric, how it is shown, and what of it
    "Pass@1, held out": ("eval:pass@1", "{:.3f}", _ENDS),
    "Reward": ("reward", "{:.3f}", _ENDS),
    "Entropy": ("entropy", "{:.3f}", _ENDS),
    "KL": ("kl", "{:.4f}", _ENDS),
    "Prompts all right": ("groups/ph", "{:.0%}", _ENDS),
    "Rollouts with a gradient": ("rollouts/used", "{:.1%}", _MEAN),
    "Rollouts recovered": ("rollouts/recovered", "{:.1%}", _MEAN),
    "Cap binds": ("miner/cap_binds", "{:.0%}", _MEAN),
    "Factor on PH advantages": ("miner/scale", "{:.3f}", _MEAN),
}
METRICS = [metric for metric, *_ in _LOGGED.values()]
_ROLLOUTS_TO_READ = 6


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


# Methods


def is_scored(run: RunHistory) -> bool:
    """Return whether a run is finished and has a Pass@1 wherever it was scored."""
    return run.finished and bool(run.scores) and all("pass@1" in scores for scores in run.scores.values())


def final_scores(run: RunHistory) -> Mapping[str, float]:
    """Return the last scores on held-out problems; empty: there are none."""
    return run.scores[max(run.scores)] if run.scores else {}


def mean_step_time(run: RunHistory) -> float | None:
    """Return the seconds of an optimizer step, without the scoring; None: not recorded."""
    import numpy as np

    # A log holds the mean since the log before, so that it counts for as many optimizer steps.
    logged, points = run.points("step")[:, 0], run.points("step_time")
    points = points[np.isfinite(points[:, 1])]
    weights = np.diff(logged, prepend=0.0)[np.searchsorted(logged, points[:, 0])]
    return float(points[:, 1] @ weights / weights.sum()) if weights.sum() else None


def methods_table(runs: Mapping[str, Sequence[RunHistory]], planned: Mapping[str, int]) -> Table:
    """Return the table with a row for each method.

    `runs` are by method those that were scored after training. `planned` says how many each method should have; its
    methods are the rows, in order.
    """
    baseline = baseline_of(runs)
    target = None if baseline is None else _target(runs[baseline])
    ks = [int(name.split("@")[1]) for own in runs.values() for run in own for name in final_scores(run)]
    forms = dict.fromkeys(("Pass@1", f"Pass@{max(ks, default=1)}"), "{:.3f}") | _FORMS
    rows = []
    for method, size in planned.items():
        numbers = [_numbers(run, target) for run in runs.get(method, ())]
        known = len(numbers)
        cells = {title: spread_text([own.get(title) for own in numbers], form) for title, form in forms.items()}
        if target is not None and numbers:
            reached = sum(own[_STEPS] is not None for own in numbers)
            shown = cells[_STEPS] if reached else "not reached"
            cells[_STEPS] = shown if reached == known else f"{shown} ({reached} of {known})"
        rows.append([method, str(known) if known == size else f"{known} of {size}", *cells.values()])
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


# Settings, runs, and results of `trl-miner eval`


def settings_table(methods: Sequence[Method]) -> Table | None:
    """Return the settings in which methods differ, a row each; None: there are none."""
    known = {method.label: every_setting(method.runs[0]) for method in methods if method.runs[0].settings}
    names = sorted({name for own in known.values() for name in own})
    rows = [[name, *(own.get(name, "default").removesuffix(".0") for own in known.values())] for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Table("Settings that differ", ["Setting", *known], rows, is_text=True) if rows else None


def runs_table(metrics: "Metrics") -> Table | None:
    """Return how far each run went, and what it logged; None: there are no runs."""
    known = {title: own for title, own in _LOGGED.items() if own[0] in metrics.known}
    rows = []
    for run in [run for method in metrics.methods for run in method.runs]:
        seconds = mean_step_time(run)
        per_step = NOT_AVAILABLE if seconds is None else f"{seconds * (run.per_step or 1.0):.2f}"
        cells = [metrics.cell(run, metric, form, *whats) for metric, form, whats in known.values()]
        rows.append([run.name, steps_done(run) + ", unfinished" * (not run.finished), per_step, *cells])
    notes = [
        "First → last logged value; of rollouts, cap and factor the mean over the logs. Entropy and KL in nats per "
        "completion token. Steps of the optimizer; seconds per generation batch, where the run recorded its steps."
    ]
    return Table("Runs", ["Run", "Steps", "Seconds per step", *known], rows, notes) if rows else None


def steps_done(run: RunHistory) -> str:
    """Return the steps of a run, and of how many."""
    return f"{run.steps} of {run.planned}" if run.planned else str(run.steps)


def results_table(results: Sequence[EvalResult]) -> Table | None:
    """Return one row per result and benchmark, with intervals; None: there are none."""
    rows = []
    for result in results:
        for one in result.benchmarks.values():
            counts = [str(one.get(key, NOT_AVAILABLE)) for key in ("problems", "samples", "k")]
            measured = [_interval(one, metric) for metric in ("pass@1", "pass@k", "maj@k")]
            rows.append([result.name, str(one.get("title")), *counts, *measured])
    header = ["Model", "Benchmark", "Problems", "Samples", "K", "Pass@1", "Pass@K", "Maj@K"]
    notes = ["Percent. In brackets: 95 % bootstrap interval over the problems."]
    return Table("Scores of benchmarks", header, rows, notes) if rows else None


def _interval(one: Mapping[str, Any], metric: str) -> str:
    measured = one.get("intervals", {}).get(metric)
    if not measured:
        return NOT_AVAILABLE
    return "{:.1f} ({:.1f} to {:.1f})".format(*(100 * measured[part] for part in ("mean", "low", "high")))


# Completions to read


def completions_files(run: Path) -> list[Path]:
    """Return the files that TRL writes with `log_completions: true`, in the order of their steps."""
    return sorted((run / "completions").glob("*.parquet"))


def completions_table(run: RunHistory) -> tuple[Table | None, list[str]]:
    """Return rollouts of the last file that can be read, spread over it, and what could not be read.

    None: the run recorded none.
    """
    notes = []
    for path in reversed(completions_files(run.folder)):
        table, note = read_parquet(path)
        notes += [f"{run.name}: {note}"] if note else []
        if table is None or not table.num_rows or not _TEXTS <= set(table.column_names):
            continue
        kept = min(_ROLLOUTS_TO_READ, table.num_rows)
        rollouts = table.take([place * table.num_rows // kept for place in range(kept)]).to_pylist()
        types = {name: str(table.schema.field(name).type) for name in table.column_names}
        rewards = [name for name, kind in types.items() if kind in ("float", "double") and name not in _NOT_REWARDS]
        rows = []
        for at, rollout in enumerate(rollouts, 1):
            texts = [one_line(_said(rollout["prompt"]), 300), one_line(_said(rollout["completion"]), 600)]
            values = [number(rollout[name]) for name in rewards]
            rows.append([str(at), *texts, *("unscorable" if value is None else f"{value:g}" for value in values)])
        title = f"Some rollouts of step {rollouts[0]['step']} of {run.name}"
        return Table(title, ["", "Prompt", "Completion", *rewards], rows, is_text=True), notes
    return None, notes


def _said(said: Any) -> str:
    """Return the messages of a conversation after the system's, with their roles if several; a text as it is."""
    if said is None or isinstance(said, str):
        return said or ""
    texts = [(message.get("role"), _content(message)) for message in said if message.get("role") != "system"]
    return texts[0][1] if len(texts) == 1 else "\n".join(f"{role}: {text}" for role, text in texts)


def _content(message: Mapping[str, Any]) -> str:
    """Return what a message says, and the tools that it calls."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text") or f"[{part.get('type')}]" for part in content)
    calls = [call.get("function") or call for call in message.get("tool_calls") or ()]
    return "\n".join([*([content] if content else []), *(json.dumps(call, ensure_ascii=False) for call in calls)])
