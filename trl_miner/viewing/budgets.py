"""Methods at equal budgets of rollouts and of tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..runs.history import RunHistory, number
from ..tables import Table
from .comparison import RunSummary, is_scored, steps_to, summary_of, target_of
from .grouping import Method, baseline_of
from .spreads import show_known, show_spread, spread

ROLLOUTS, TOKENS = "rollouts/generated_total", "rollouts/tokens_total"
_UNITS = {ROLLOUTS: "rollouts", TOKENS: "tokens"}
_YIELDS = 0.05  # of GRPO's budget, for runs whose completions are a little shorter


@dataclass(frozen=True)
class _Spent:
    """A scored run, and how much it had generated at each scored step, by `ROLLOUTS` and `TOKENS`."""

    summary: RunSummary
    by_step: Mapping[str, Mapping[float, float]]

    def total(self, unit: str) -> float | None:
        return max(self.by_step[unit].values(), default=None)

    def score_at(self, unit: str, budget: float) -> float | None:
        """Return Pass@1 when that much was generated, linear between two scored steps; None: it never was."""
        total = self.total(unit)
        if total is None or total < budget:
            return None
        spent = self.by_step[unit]
        steps = sorted(spent)
        scores = [self.summary.scores[step]["pass@1"] for step in steps]
        return float(np.interp(budget, [spent[step] for step in steps], scores))


def budgets_table(methods: Sequence[Method]) -> Table | None:
    """Return Pass@1 of each method when it had generated as much as GRPO had at its end, and the cost of GRPO's best.

    None: there is no GRPO, or no other method, among the scored runs that recorded how much they generated.
    """
    spent = {method.label: own for method in methods if (own := _scored(method))}
    baseline = baseline_of([method for method in methods if method.label in spent])
    if baseline is None or len(spent) < 2:
        return None
    target = target_of([run.summary for run in spent[baseline.label]])
    budgets = _budgets(spent, baseline.label)
    if target is None or not budgets:
        return None
    last = list(budgets)[-1]
    header = ["Method", *(f"{_UNITS[unit].capitalize()} generated" for unit in budgets)]
    header += [f"Pass@1 at {budget:,.0f} {_UNITS[unit]}" for unit, budget in budgets.items()]
    header += ["Steps to GRPO's best Pass@1", f"{_UNITS[last].capitalize()} to it"]
    rows = []
    for label, runs in spent.items():
        reached = [steps_to(run.summary, target["pass@1"]) for run in runs]
        costs = [None if at is None else run.by_step[last].get(at) for run, at in zip(runs, reached, strict=True)]
        cells = [show_spread(spread([run.total(unit) for run in runs]), "{:,.0f}") for unit in budgets]
        cells += [
            show_known([run.score_at(unit, budget) for run in runs], "{:.3f}") for unit, budget in budgets.items()
        ]
        cells += [show_known(values, "{:,.0f}", "not reached") for values in (reached, costs)]
        rows.append([label, *cells])
    return Table("Equal budgets", header, rows, _notes(baseline.label, target))


def _scored(method: Method) -> list[_Spent]:
    """Return the finished runs of a method that were scored and recorded how much they generated."""
    runs = []
    for run in filter(is_scored, method.runs):
        by_step = {unit: _spent_by_step(run, unit) for unit in _UNITS}
        if any(by_step.values()):
            runs.append(_Spent(summary_of(run, method.label), by_step))
    return runs


def _spent_by_step(run: RunHistory, unit: str) -> dict[float, float]:
    """Return a running total at the scored steps (generation batches) up to the last log, linear between two logs."""
    points = [(step, value) for step, value in run.values(unit) if number(value) is not None]
    if not points:
        return {}
    steps, totals = zip((0.0, 0.0), *points, strict=True)
    scored = [step for step in run.scores if step <= steps[-1]]
    return {step / (run.per_step or 1.0): float(np.interp(step, steps, totals)) for step in scored}


def _budgets(spent: Mapping[str, Sequence[_Spent]], baseline: str) -> dict[str, float]:
    """Return the budget by unit: the least that a run of the baseline had generated, or nearly so."""
    budgets = {}
    for unit in _UNITS:
        own = [total for run in spent[baseline] if (total := run.total(unit)) is not None]
        every = [total for runs in spent.values() for run in runs if (total := run.total(unit)) is not None]
        if own:
            budgets[unit] = min(every) if min(every) >= (1 - _YIELDS) * min(own) else min(own)
    return budgets


def _notes(baseline: str, target: Mapping[str, float]) -> list[str]:
    return [
        "Generated: all rollouts, those that dynamic sampling dropped included, and the tokens that the model sampled "
        "for them, without those of tools. "
        "Mean ± sample standard deviation over the seeds; Pass@1 on all held-out problems.",
        f"Pass@1 at a budget: linear between the scored steps around it. The budget is the least that a run of "
        f"{baseline} had generated at its end, or up to {_YIELDS:.0%} less where every run then reaches it. A run "
        f"that ended before it does not count: (2 of 3) counted.",
        f"GRPO's best Pass@1: {target['pass@1']:.3f}, the best mean over the runs of {baseline} at a scored step. "
        f"Each run counts with its first scored step at or above it; steps are generation batches.",
    ]
