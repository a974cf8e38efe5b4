"""The table of `trl-miner compare`: methods by their scores, time and rollouts.

A *step* in here is one generation batch, as in the papers, however many optimizer steps a recipe makes of it.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..runs.held_out import read_held_out
from ..runs.history import RunHistory, read_run
from ..runs.trainer_state import last_step
from ..tables import Table
from .cells import NOT_AVAILABLE, counted, show_spread, spread, with_count

_ROUNDING = 1e-9  # the mean of equal scores may be a little above each of them


def read_finished(folder: Path) -> RunHistory | None:
    """Return a run of `trl-miner compare`; None: it was not scored after training, or a file is missing or damaged."""
    try:
        held_out = read_held_out(folder)
        is_finished = last_step(folder) is not None and held_out is not None and held_out.after is not None
        return read_run(folder) if is_finished else None
    except (FileNotFoundError, ValueError):
        return None


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
    logged = np.array([log["step"] for log in run.logs], dtype=float)
    points = run.points("step_time")
    points = points[np.isfinite(points[:, 1])]
    weights = np.diff(logged, prepend=0.0)[np.searchsorted(logged, points[:, 0])]
    return float(points[:, 1] @ weights / weights.sum()) if weights.sum() else None


def compare_runs(
    runs: Mapping[str, Sequence[RunHistory]], wanted: Mapping[str, int], *, baseline: str | None
) -> dict[str, Any]:
    """Return the content of `comparison.json`, with what `spread` gives by row and column.

    Args:
        runs: By method those that were scored after training.
        wanted: How many runs each method should have; its methods are the rows, in order.
        baseline: The method whose best Pass@1 is the target of the others.
    """
    target = _target(runs.get(baseline or "", ()))
    every = [run for method in wanted for run in runs.get(method, ())]
    largest_k = max((int(name.split("@")[1]) for run in every for name in final_scores(run)), default=1)
    rows = []
    for method, number in wanted.items():
        known = [_numbers(run, target) for run in runs.get(method, ())]
        columns = {key: spread([own.get(key) for own in known]) for key in _columns(largest_k)}
        rows.append({"method": method, "runs": len(known), "wanted": number, **columns})
    return {"baseline": baseline, "target": target, "largest_k": largest_k, "rows": rows}


def comparison_table(comparison: Mapping[str, Any]) -> Table:
    """Return the numbers of `compare_runs` as a table."""
    columns = _columns(comparison["largest_k"])
    is_even = len({row["wanted"] for row in comparison["rows"]}) < 2
    rows = []
    for row in comparison["rows"]:
        cells = {key: show_spread(row[key], form) for key, (_, form) in columns.items()}
        if comparison["target"] is not None and row["runs"]:
            reached = (row["steps_to_target"] or {"runs": 0})["runs"]
            shown = cells["steps_to_target"] if reached else "not reached"
            cells["steps_to_target"] = with_count(shown, reached, row["runs"])
        name = row["method"]
        if row["runs"] != row["wanted"]:
            name += f" ({row['runs']} of {row['wanted']} runs)"
        elif not is_even:
            name += f" ({counted(row['runs'], 'run')})"
        rows.append([name, *cells.values()])
    return Table("Methods", ["Method", *(title for title, _ in columns.values())], rows, _notes(comparison))


def _columns(largest_k: int) -> dict[str, tuple[str, str]]:
    """Return titles and forms of the columns."""
    return {
        "pass@1": ("Pass@1", "{:.3f}"),
        f"pass@{largest_k}": (f"Pass@{largest_k}", "{:.3f}"),
        "steps_to_target": ("Steps to GRPO's best Pass@1", "{:.0f}"),
        "seconds_per_step": ("Seconds per step", "{:.2f}"),
        "rollouts_generated": ("Rollouts generated", "{:,.0f}"),
        "rollouts_used": ("Rollouts with a gradient", "{:.1%}"),
    }


def _numbers(run: RunHistory, target: Mapping[str, float] | None) -> dict[str, float | None]:
    """Return the numbers of one run by column, where it recorded them."""
    per_step, seconds = run.per_step or 1.0, mean_step_time(run)
    generated, used = (_last(run, f"rollouts/{name}_total") for name in ("generated", "used"))
    best = float("inf") if target is None else target["pass@1"] - _ROUNDING
    reached = [step / per_step for step, scores in run.scores.items() if scores["pass@1"] >= best]
    return {
        **final_scores(run),
        "steps_to_target": min(reached, default=None),
        "seconds_per_step": None if seconds is None else seconds * per_step,
        "rollouts_generated": generated,  # those that dynamic sampling dropped included
        "rollouts_used": used / generated if generated and used is not None else None,
    }


def _target(runs: Sequence[RunHistory]) -> dict[str, float] | None:
    """Return the best mean of the runs' Pass@1, and its step, among the steps at which all of them were scored."""
    if not runs:
        return None
    scores = [{step / (run.per_step or 1.0): own["pass@1"] for step, own in run.scores.items()} for run in runs]
    steps = sorted(set.intersection(*map(set, scores)))
    means = {step: statistics.fmean(own[step] for own in scores) for step in steps}
    best = max(means, key=lambda step: means[step])  # the first of equals
    return {"pass@1": means[best], "step": best}


def _last(run: RunHistory, metric: str) -> float | None:
    values = run.points(metric)[:, 1]
    known = values[values == values]  # NaN where it is no finite number
    return float(known[-1]) if len(known) else None


def _notes(comparison: Mapping[str, Any]) -> list[str]:
    target, baseline = comparison["target"], comparison["baseline"]
    if target is not None:
        best = (
            f"GRPO's best Pass@1: {target['pass@1']:.3f}, the best mean over the runs of {baseline} at a scored step "
            f"(step {target['step']:.0f}). "
            f"Each run counts with its first scored step at or above it; 0 is before training."
        )
    elif baseline is None:
        best = f"Steps to GRPO's best Pass@1 are {NOT_AVAILABLE}: no recipe is plain GRPO."
    else:
        best = f"Steps to GRPO's best Pass@1 are {NOT_AVAILABLE}: no run of {baseline} has finished."
    return [
        "Mean ± sample standard deviation over the seeds. Pass@k after training, on the held-out problems.",
        "A step is one generation batch.",
        best,
    ]
