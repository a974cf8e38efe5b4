"""Tables of a report with a row per setting, run, or result of `trl-miner eval`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..runs.history import RunHistory
from ..tables import Table
from .cells import NOT_AVAILABLE
from .comparison import mean_step_time
from .frame import Metrics
from .grouping import Method, every_setting
from .material import EvalResult

_ENDS = ("first", "last")
_COLUMNS = {  # by title: metric, how it is shown, what of it, and a note
    "Pass@1, held out": ("eval:pass@1", "{:.3f}", _ENDS, "before training → the last score"),
    "Reward": ("reward", "{:.3f}", _ENDS, ""),
    "Entropy": ("entropy", "{:.3f}", _ENDS, "nats per completion token"),
    "KL": ("kl", "{:.4f}", _ENDS, "to the reference model, nats per completion token"),
    "Prompts all right": ("groups/ph", "{:.0%}", _ENDS, ""),
    "Rollouts with a gradient": ("rollouts/used", "{:.1%}", ("mean",), "mean over the logs"),
    "Rollouts recovered": ("rollouts/recovered", "{:.1%}", ("mean",), "of PH prompts, mean over the logs"),
    "Cap binds": ("miner/cap_binds", "{:.0%}", ("mean",), "share of the logged steps"),
    "Factor on PH advantages": ("miner/scale", "{:.3f}", ("mean",), "mean over the logs"),
}
METRICS = [metric for metric, *_ in _COLUMNS.values()]


def settings_table(methods: Sequence[Method]) -> Table | None:
    """Return the settings in which methods differ, a row each; None: there are none."""
    known = {method.label: every_setting(method.runs[0]) for method in methods if method.runs[0].settings}
    names = sorted({name for own in known.values() for name in own})
    rows = [[name, *(own.get(name, "default").removesuffix(".0") for own in known.values())] for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Table("Settings that differ", ["Setting", *known], rows, is_text=True) if rows else None


def runs_table(metrics: Metrics) -> Table | None:
    """Return how far each run went, and what it logged; None: there are no runs."""
    runs = [run for method in metrics.methods for run in method.runs]
    known = {title: own for title, own in _COLUMNS.items() if any(metrics.has(own[0], run) for run in runs)}
    rows = []
    for run in runs:
        seconds = mean_step_time(run)
        per_step = NOT_AVAILABLE if seconds is None else f"{seconds * (run.per_step or 1.0):.2f}"
        cells = [metrics.cell(run, metric, form, *whats) for metric, form, whats, _ in known.values()]
        rows.append([run.name, steps_done(run), per_step, *cells])
    notes = [
        "First → last logged value. Steps of the optimizer. Seconds per generation batch, where the run recorded how "
        "many steps it has."
    ]
    said = [f"{title}: {note}" for title, (*_, note) in known.items() if note]
    notes += [f"{'; '.join(said)}."] if said else []
    return Table("Runs", ["Run", "Steps", "Seconds per step", *known], rows, notes) if rows else None


def steps_done(run: RunHistory) -> str:
    """Return the steps of a run, and of how many."""
    done = f"{run.steps} of {run.planned}" if run.planned else str(run.steps)
    return done if run.finished else f"{done}, unfinished"


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
