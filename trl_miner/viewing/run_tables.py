"""Tables with a row per run, per result of `trl-miner eval`, or per rollout."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..runs.history import RunHistory, number
from ..tables import Table
from ..text import one_line
from .comparison import mean_step_time
from .completions import Completions
from .curves import overhead
from .grouping import Method, group_results
from .material import EvalResult
from .spreads import NOT_AVAILABLE, first_and_last, known_values


def runs_table(runs: Sequence[RunHistory]) -> Table:
    """Return one row per run: how far it went, and what it logged first and last."""
    header = ["Run", "Steps", "Reward", "Prompts all right", "Rollouts recovered", "Pass@1, held out"]
    header += ["Seconds per step", "MINER's share of the time"]
    rows = []
    for run in runs:
        seconds = mean_step_time(run)
        shares = [share for _, share in overhead(run) if number(share) is not None]
        passes = [value for scores in run.scores.values() if (value := number(scores.get("pass@1"))) is not None]
        rows.append(
            [
                run.name,
                steps_done(run),
                first_and_last(known_values(run, "reward"), "{:.3f}"),
                first_and_last(known_values(run, "groups/ph"), "{:.0%}"),
                first_and_last(known_values(run, "rollouts/recovered"), "{:.0%}"),
                first_and_last(passes, "{:.3f}"),
                NOT_AVAILABLE if seconds is None else f"{seconds * (run.per_step or 1.0):.2f}",
                f"{sum(shares) / len(shares):.1%}" if shares else NOT_AVAILABLE,
            ]
        )
    notes = ["First logged value → last one. Held out: measured before → after the last training step scored."]
    notes += ["Steps of the optimizer. Seconds per generation batch, where the run recorded how many steps it has."]
    return Table("Runs", header, rows, notes)


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
            "unscorable" if row.get(reward) is None else f"{row[reward]:g}",
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
