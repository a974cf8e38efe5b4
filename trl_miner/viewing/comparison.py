"""The table of `trl-miner compare`: methods by their scores, time and rollouts.

A *step* in here is one generation batch, as in the papers, however many optimizer steps a recipe makes of it.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runs.held_out import read_held_out
from ..runs.history import RunHistory, read_run
from ..runs.trainer_state import FILE as STATE
from ..runs.trainer_state import last_step
from ..runs.training_record import RECORD, read_compared
from ..tables import Table
from .cells import NOT_AVAILABLE, counted, show_spread, spread, with_count

_ROUNDING = 1e-9  # the mean of equal scores may be a little above each of them


@dataclass(frozen=True)
class RunSummary:
    """The numbers of one run in a comparison; None: the run did not record it."""

    method: str
    seed: int
    scores: Mapping[float, Mapping[str, float]]  # {0: {"pass@1": 0.5}, 15: ...}, 0 before training
    seconds_per_step: float | None  # without the scoring
    generated: float | None  # rollouts, those that dynamic sampling dropped included
    used: float | None  # share of `generated` that had a gradient

    @property
    def final(self) -> Mapping[str, float]:
        return self.scores[max(self.scores)]

    def steps_to(self, wanted: float) -> float | None:
        """Return the first scored step whose Pass@1 is at least `wanted`; None: there is none."""
        return next((step for step in sorted(self.scores) if self.scores[step]["pass@1"] >= wanted - _ROUNDING), None)


def summarize_run(folder: str | Path) -> RunSummary:
    """Read the folder of a finished run of `trl-miner compare`."""
    folder = Path(folder)
    if not (compared := read_compared(folder)):
        raise FileNotFoundError(
            f"{folder / RECORD} must name a run of `trl-miner compare`: it names none. Run compare again."
        )
    if last_step(folder) is None:
        raise FileNotFoundError(f"{folder / STATE} is missing or damaged. Run compare again.")
    held_out = read_held_out(folder)
    if held_out is None or held_out.after is None:
        raise ValueError(f"{folder} must hold a finished run: it was not scored after training. Run compare again.")
    return summary_of(read_run(folder), compared["method"])


def summary_of(run: RunHistory, method: str) -> RunSummary:
    """Return the numbers of a run that was scored after training, for the row of a method."""
    per_step, seconds = run.per_step or 1.0, mean_step_time(run)
    generated, used = (_last(run, f"rollouts/{name}_total") for name in ("generated", "used"))
    return RunSummary(
        method=method,
        seed=run.seed or 0,
        scores={step / per_step: scores for step, scores in run.scores.items()},
        seconds_per_step=None if seconds is None else seconds * per_step,
        generated=generated,
        used=used / generated if generated and used is not None else None,
    )


def is_scored(run: RunHistory) -> bool:
    """Return whether a run is finished and has a Pass@1 wherever it was scored."""
    return run.finished and bool(run.scores) and all("pass@1" in scores for scores in run.scores.values())


def mean_step_time(run: RunHistory) -> float | None:
    """Return the seconds of an optimizer step, without the scoring; None: not recorded."""
    import numpy as np

    # A log holds the mean since the log before, so that it counts for as many optimizer steps.
    logged = np.array([log["step"] for log in run.logs], dtype=float)
    points = run.points("step_time")
    points = points[np.isfinite(points[:, 1])]
    weights = np.diff(logged, prepend=0.0)[np.searchsorted(logged, points[:, 0])]
    return float(points[:, 1] @ weights / weights.sum()) if weights.sum() else None


def compare_runs(runs: Sequence[RunSummary], methods: Mapping[str, int], *, baseline: str | None) -> dict[str, Any]:
    """Return the content of `comparison.json` for the finished runs, with what `spread` gives by row and column.

    `methods` are the rows, in order, and how many runs each should have; the target is the baseline's best Pass@1.
    """
    target = target_of([run for run in runs if run.method == baseline])
    largest_k = max((int(name.split("@")[1]) for run in runs for name in run.final), default=1)
    rows = []
    for method, wanted in methods.items():
        own = [run for run in runs if run.method == method]
        rows.append(
            {
                "method": method,
                "runs": len(own),
                "wanted": wanted,
                "pass@1": spread([run.final.get("pass@1") for run in own]),
                f"pass@{largest_k}": spread([run.final.get(f"pass@{largest_k}") for run in own]),
                "steps_to_target": spread([run.steps_to(target["pass@1"]) for run in own] if target else []),
                "seconds_per_step": spread([run.seconds_per_step for run in own]),
                "rollouts_generated": spread([run.generated for run in own]),
                "rollouts_used": spread([run.used for run in own]),
            }
        )
    return {"baseline": baseline, "target": target, "largest_k": largest_k, "rows": rows}


def comparison_table(comparison: Mapping[str, Any]) -> Table:
    """Return the numbers of `compare_runs` as a table."""
    k = comparison["largest_k"]
    columns = {
        "pass@1": ("Pass@1", "{:.3f}"),
        f"pass@{k}": (f"Pass@{k}", "{:.3f}"),
        "steps_to_target": ("Steps to GRPO's best Pass@1", "{:.0f}"),
        "seconds_per_step": ("Seconds per step", "{:.2f}"),
        "rollouts_generated": ("Rollouts generated", "{:,.0f}"),
        "rollouts_used": ("Rollouts with a gradient", "{:.1%}"),
    }
    is_even = len({row["wanted"] for row in comparison["rows"]}) < 2
    rows = []
    for row in comparison["rows"]:
        cells = {key: show_spread(row[key], form) for key, (_, form) in columns.items()}
        if comparison["target"] is not None and row["runs"]:
            steps = row["steps_to_target"] or {"runs": 0}
            shown = cells["steps_to_target"] if steps["runs"] else "not reached"
            cells["steps_to_target"] = with_count(shown, steps["runs"], row["runs"])
        rows.append([_name(row, is_even=is_even), *cells.values()])
    return Table("Methods", ["Method", *(title for title, _ in columns.values())], rows, _notes(comparison))


def target_of(runs: Sequence[RunSummary]) -> dict[str, float] | None:
    """Return the best mean of the runs' Pass@1, and its step, among the steps at which all of them were scored."""
    if not runs:
        return None
    steps = set.intersection(*(set(run.scores) for run in runs))
    means = {step: statistics.fmean(run.scores[step]["pass@1"] for run in runs) for step in sorted(steps)}
    best = max(means, key=lambda step: means[step])  # the first of equals
    return {"pass@1": means[best], "step": best}


def _last(run: RunHistory, metric: str) -> float | None:
    values = run.points(metric)[:, 1]
    known = values[values == values]  # NaN where it is no finite number
    return float(known[-1]) if len(known) else None


def _name(row: Mapping[str, Any], *, is_even: bool) -> str:
    if row["runs"] != row["wanted"]:
        return f"{row['method']} ({row['runs']} of {row['wanted']} runs)"
    return row["method"] if is_even else f"{row['method']} ({counted(row['runs'], 'run')})"


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
