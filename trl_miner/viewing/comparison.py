"""The table of `trl-miner compare`: methods by their scores, time and rollouts.

A *step* in here is one generation batch, as in the papers, however many optimizer steps a recipe makes of it.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..runs.held_out import read_held_out
from ..runs.history import RunHistory, read_run
from ..runs.trainer_state import last_step
from ..tables import Table
from .cells import NOT_AVAILABLE, spread_text
from .grouping import baseline_of

_ROUNDING = 1e-9  # the mean of equal scores may be a little above each of them
_STEPS = "Steps to GRPO's best Pass@1"
_FORMS = {
    _STEPS: "{:.0f}",
    "Seconds per step": "{:.2f}",
    "Rollouts generated": "{:,.0f}",
    "Rollouts with a gradient": "{:.1%}",
}


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
    import numpy as np  # not above: `trl-miner compare` starts without it

    # A log holds the mean since the log before, so that it counts for as many optimizer steps.
    logged = run.points("step")[:, 0]
    points = run.points("step_time")
    points = points[np.isfinite(points[:, 1])]
    weights = np.diff(logged, prepend=0.0)[np.searchsorted(logged, points[:, 0])]
    return float(points[:, 1] @ weights / weights.sum()) if weights.sum() else None


def methods_table(runs: Mapping[str, Sequence[RunHistory]], planned: Mapping[str, int]) -> Table:
    """Return the table with a row for each method.

    Args:
        runs: By method those that were scored after training.
        planned: How many runs each method should have; its methods are the rows, in order.
    """
    baseline = baseline_of(runs)
    target = None if baseline is None else _target(runs[baseline])
    largest_k = max((int(name.split("@")[1]) for own in runs.values() for run in own for name in final_scores(run)),
                    default=1)  # fmt: skip
    passes = dict.fromkeys(("Pass@1", f"Pass@{largest_k}"), "{:.3f}")
    rows = []
    for method, size in planned.items():
        numbers = [_numbers(run, target) for run in runs.get(method, ())]
        known = len(numbers)
        forms = (passes | _FORMS).items()
        cells = {title: spread_text([own.get(title) for own in numbers], form) for title, form in forms}
        if target is not None and numbers:
            reached = sum(own[_STEPS] is not None for own in numbers)
            shown = cells[_STEPS] if reached else "not reached"
            cells[_STEPS] = shown if reached == known else f"{shown} ({reached} of {known})"
        rows.append([method, str(known) if known == size else f"{known} of {size}", *cells.values()])
    return Table("Methods", ["Method", "Runs", *passes, *_FORMS], rows, _notes(baseline, target))


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
    values = run.points(metric)[:, 1]
    known = values[values == values]  # NaN where it is no finite number
    return float(known[-1]) if len(known) else None


def _notes(baseline: str | None, target: tuple[float, float] | None) -> list[str]:
    best = f"{_STEPS} are {NOT_AVAILABLE}: no finished run is plain GRPO."
    if target is not None:
        best = (
            f"GRPO's best Pass@1: {target[1]:.3f}, the best mean over the runs of {baseline} at a scored step "
            f"(step {target[0]:.0f}). Each run counts with its first scored step at or above it; 0 is before training."
        )
    return [
        "Mean ± sample standard deviation over the seeds. Pass@k after training, on the held-out problems. A step is "
        "one generation batch.",
        best,
    ]
