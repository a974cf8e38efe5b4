"""Tables of a report with a row per method, run, result of `trl-miner eval`, or rollout."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..runs.dose import KINDS, dose_of, dose_reached
from ..runs.history import RunHistory, number
from ..tables import Table
from ..text import one_line
from .cells import NOT_AVAILABLE
from .comparison import compare_runs, comparison_table, is_scored, mean_step_time
from .completions import Completions
from .frame import Metrics
from .grouping import Method, baseline_of, every_setting, group_results
from .material import EvalResult

_ENDS = ("first", "last")
_TRAINING = {  # by title: metric, how it is shown, what of each run, and a note
    "Reward": ("reward", "{:.3f}", _ENDS, ""),
    "Entropy": ("entropy", "{:.3f}", _ENDS, "nats per completion token."),
    "KL": ("kl", "{:.4f}", _ENDS, "to the reference model, nats per completion token."),
    "Prompts all right": ("groups/ph", "{:.0%}", _ENDS, ""),
    "Rollouts with a gradient": ("used_share", "{:.1%}", ("last",), "of all that were generated."),
    "Rollouts recovered": ("rollouts/recovered", "{:.1%}", ("mean",), "of PH prompts, mean over the logs."),
    "tau_pos / tau_ref": (
        *("tau_ratio", "{:.1e}", ("median",)),
        "MINER's signal against GRPO's before the cap, median over the logs.",
    ),
    "Cap binds": ("miner/cap_binds", "{:.0%}", ("mean",), "share of the logged steps."),
    "Factor on PH advantages": ("miner/scale", "{:.3f}", ("mean",), "mean over the logs."),
    "Time for MINER": ("overhead", "{:.2%}", ("mean",), "of its advantages, as a share of the step's time."),
}
_RUNS = {
    "Reward": ("reward", "{:.3f}", _ENDS),
    "Prompts all right": ("groups/ph", "{:.0%}", _ENDS),
    "Rollouts recovered": ("rollouts/recovered", "{:.0%}", _ENDS),
    "Pass@1, held out": ("eval:pass@1", "{:.3f}", _ENDS),
    "MINER's share of the time": ("overhead", "{:.1%}", ("mean",)),
}
METRICS = [metric for columns in (_TRAINING, _RUNS) for metric, *_ in columns.values()]


def methods_table(methods: Sequence[Method]) -> Table | None:
    """Return the table of `trl-miner compare` for the runs that were scored after training; None: there are none."""
    scored = {method.label: [run for run in method.runs if is_scored(run)] for method in methods}
    if not any(scored.values()):
        return None
    baseline = baseline_of(methods)
    wanted = {method.label: len(method.runs) for method in methods}
    return comparison_table(compare_runs(scored, wanted, baseline=None if baseline is None else baseline.label))


def settings_table(methods: Sequence[Method]) -> Table | None:
    """Return the settings in which methods differ, a row each; None: there are none."""
    known = {method.label: every_setting(method.runs[0]) for method in methods if method.runs[0].settings}
    names = sorted({name for own in known.values() for name in own})
    rows = [[name, *(own.get(name, "default").removesuffix(".0") for own in known.values())] for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Table("Settings that differ", ["Setting", *known], rows, is_text=True) if rows else None


def dose_table(methods: Sequence[Method]) -> Table | None:
    """Return the method of each kind of prompt, the dose asked for and the dose reached; None: no settings."""
    rows = []
    for method in methods:
        doses = [dose_of(run) for run in method.runs if run.settings or run.method is not None]
        if not doses:
            continue
        named = [doses[0].methods[kind] for kind in KINDS]
        dosed = [cell or NOT_AVAILABLE for cell in (doses[0].asked, *dose_reached(doses))]
        rows.append([method.label, *named, *dosed])
    header = ["Method", "Mixed prompts", "All right", "All wrong", "Dose asked for", "Reached, mean", "First → last"]
    notes = [
        "Dose: how strongly the methods of all-right and all-wrong prompts act beside that of mixed ones. Sums "
        "are over the tokens. Reached: means over the batches that were logged, and over the runs."
    ]
    return Table("Methods by kind of prompt, and their dose", header, rows, notes, is_text=True) if rows else None


def training_table(metrics: Metrics) -> Table | None:
    """Return entropy, KL, kinds of prompt, MINER's cap, its time, and runs that stopped, by method; None: no runs."""
    every = [run for method in metrics.methods for run in method.runs]
    columns = {title: column for title, column in _TRAINING.items() if metrics.of(every, column[0])}
    if not columns:
        return None
    rows = [
        [method.label, str(len(method.runs)), *_cells(metrics, method.runs, columns), str(unfinished)]
        for method in metrics.methods
        for unfinished in [sum(not run.finished for run in method.runs)]
    ]
    notes = ["Means over the runs. First → last: the first and the last logged value."]
    notes += [f"{title}: {note}" for title, (*_, note) in columns.items() if note]
    return Table("What training did", ["Method", "Runs", *columns, "Runs not finished"], rows, notes)


def runs_table(runs: Sequence[RunHistory], metrics: Metrics) -> Table:
    """Return one row per run: how far it went, and what it logged first and last."""
    rows = []
    for run in runs:
        seconds = mean_step_time(run)
        per_step = NOT_AVAILABLE if seconds is None else f"{seconds * (run.per_step or 1.0):.2f}"
        rows.append([run.name, steps_done(run), per_step, *_cells(metrics, [run], _RUNS)])
    notes = ["First logged value → last one. Held out: measured before → after the last training step scored."]
    notes += ["Steps of the optimizer. Seconds per generation batch, where the run recorded how many steps it has."]
    return Table("Runs", ["Run", "Steps", "Seconds per step", *_RUNS], rows, notes)


def _cells(metrics: Metrics, runs: Sequence[RunHistory], columns: Mapping[str, tuple[Any, ...]]) -> list[str]:
    return [metrics.cell(runs, metric, form, *whats) for metric, form, whats, *_ in columns.values()]


def steps_done(run: RunHistory) -> str:
    """Return the steps of a run, and of how many."""
    done = f"{run.steps} of {run.planned}" if run.planned else str(run.steps)
    return done if run.finished else f"{done}, unfinished"


def results_table(results: Sequence[EvalResult], methods: Sequence[Method] = ()) -> Table:
    """Return one row per result and benchmark, with intervals."""
    rows = []
    for method, own in group_results(results, methods):
        for result in own:
            name = method.label if len(own) == 1 else result.name
            for one in result.benchmarks.values():
                counts = [str(one.get(key, NOT_AVAILABLE)) for key in ("problems", "samples", "k")]
                measured = [_interval(one, metric) for metric in ("pass@1", "pass@k", "maj@k")]
                rows.append([name, str(one.get("title")), *counts, *measured])
    header = ["Model", "Benchmark", "Problems", "Samples", "K", "Pass@1", "Pass@K", "Maj@K"]
    notes = ["Percent. In brackets: 95 % bootstrap interval over the problems."]
    return Table("Scores of benchmarks", header, rows, notes)


def completions_table(run: RunHistory, completions: Completions) -> Table:
    """Return a few rollouts to read."""
    reward = completions.reward or "reward"
    rows = [
        [
            str(at),
            one_line(row["prompt"], 300),
            one_line(row["completion"], 600),
            "unscorable" if number(row.get(reward)) is None else f"{row[reward]:g}",
        ]
        for at, row in enumerate(completions.last, 1)
    ]
    title = f"Some rollouts of step {completions.last[0]['step']} of {run.name}"
    return Table(title, ["", "Prompt", "Completion", reward], rows, is_text=True)


def _interval(one: Mapping[str, Any], metric: str) -> str:
    measured = one.get("intervals", {}).get(metric)
    if not measured:
        return NOT_AVAILABLE
    return "{:.1f} ({:.1f} to {:.1f})".format(*(100 * measured[part] for part in ("mean", "low", "high")))
