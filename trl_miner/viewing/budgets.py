"""Methods at equal budgets of rollouts and of tokens, and what training did to the policy of each."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..runs.history import RunHistory, number
from ..tables import Table
from .comparison import NOT_AVAILABLE, RunSummary, show_spread, spread, steps_to, summary_of, target_of, with_count
from .curves import overhead
from .grouping import Method, baseline_of

ROLLOUTS, TOKENS = "rollouts/generated_total", "rollouts/tokens_total"
_UNITS = {ROLLOUTS: "rollouts", TOKENS: "tokens"}
_YIELDS = 0.05  # of GRPO's budget, for runs whose completions are a little shorter


@dataclass(frozen=True)
class _Spent:
    """A scored run, and what it had generated at each scored step, by `ROLLOUTS` and `TOKENS`."""

    summary: RunSummary
    by_step: Mapping[str, Mapping[float, float]]

    def total(self, of: str) -> float | None:
        return max(self.by_step[of].values(), default=None)

    def score_at(self, of: str, budget: float) -> float | None:
        """Pass@1 when that much was generated, linear between two scored steps; None: it never was."""
        import numpy as np

        total = self.total(of)
        if total is None or total < budget:
            return None
        steps = sorted(self.by_step[of])
        spent, scores = zip(*((self.by_step[of][s], self.summary.scores[s]["pass@1"]) for s in steps), strict=True)
        return float(np.interp(budget, spent, scores))


def budgets_table(methods: Sequence[Method]) -> Table | None:
    """Pass@1 of each method when it had generated as much as GRPO had at its end, and the cost of GRPO's best.

    None: there is no GRPO, or no other method, among the scored runs that recorded what they generated.
    """
    spent = {method.label: own for method in methods if (own := _scored(method))}
    baseline = baseline_of([method for method in methods if method.label in spent])
    if baseline is None or len(spent) < 2:
        return None
    target = target_of([one.summary for one in spent[baseline.label]])
    budgets = _budgets(spent, baseline.label)
    if target is None or not budgets:
        return None
    kinds = [of for of, _ in budgets]
    header = ["Method", *(f"{_UNITS[of].capitalize()} generated" for of in kinds)]
    header += [f"Pass@1 at {budget:,.0f} {_UNITS[of]}" for of, budget in budgets]
    header += ["Steps to GRPO's best Pass@1", f"{_UNITS[kinds[-1]].capitalize()} to it"]
    rows = []
    for label, own in spent.items():
        totals = [show_spread(spread([one.total(of) for one in own]), "{:,.0f}") for of in kinds]
        scores = [_some([one.score_at(of, budget) for one in own], "{:.3f}") for of, budget in budgets]
        reached = [steps_to(one.summary, target["pass@1"]) for one in own]
        costs = [None if at is None else one.by_step[kinds[-1]].get(at) for one, at in zip(own, reached, strict=True)]
        cells = [_some(values, "{:,.0f}", "not reached") for values in (reached, costs)]
        rows.append([label, *totals, *scores, *cells])
    return Table("Equal budgets", header, rows, _budget_notes(baseline.label, target))


def training_table(methods: Sequence[Method]) -> Table | None:
    """What training did, by method: entropy, KL, the kinds of prompt, MINER's cap, its time, and runs that stopped.

    None: there are no runs.
    """
    columns = [column for column in _COLUMNS if any(column.of(run) for method in methods for run in method.runs)]
    if not columns:
        return None
    rows = []
    for method in methods:
        unfinished = sum(not run.finished for run in method.runs)
        cells = [_column_cell(method, column) for column in columns]
        rows.append([method.label, str(len(method.runs)), *cells, str(unfinished)])
    header = ["Method", "Runs", *(column.title for column in columns), "Runs not finished"]
    notes = ["Means over the runs. First → last: the first and the last logged value."]
    notes += [column.note for column in columns if column.note]
    return Table("What training did", header, rows, notes)


def _scored(method: Method) -> list[_Spent]:
    """The finished runs of a method that were scored and recorded what they generated."""
    found = []
    for run in method.runs:
        if not run.finished or not run.scores or not all("pass@1" in scores for scores in run.scores.values()):
            continue
        spent = {of: _spent_by_step(run, of) for of in (ROLLOUTS, TOKENS)}
        if any(spent.values()):
            found.append(_Spent(summary_of(run, method.label), spent))
    return found


def _spent_by_step(run: RunHistory, of: str) -> dict[float, float]:
    """A running total at the scored steps (generation batches) up to the last log, linear between two logs."""
    import numpy as np

    points = [(step, value) for step, value in run.values(of) if number(value) is not None]
    if not points:
        return {}
    steps, totals = zip((0.0, 0.0), *points, strict=True)
    scored = [step for step in run.scores if step <= steps[-1]]
    return {step / (run.per_step or 1.0): float(np.interp(step, steps, totals)) for step in scored}


def _budgets(spent: Mapping[str, Sequence[_Spent]], baseline: str) -> list[tuple[str, float]]:
    """What is asked of every run: the least that a run of the baseline had generated, or nearly so."""
    found = []
    for of in (ROLLOUTS, TOKENS):
        own = [total for one in spent[baseline] if (total := one.total(of)) is not None]
        every = [total for runs in spent.values() for one in runs if (total := one.total(of)) is not None]
        if own:
            found.append((of, min(every) if min(every) >= (1 - _YIELDS) * min(own) else min(own)))
    return found


def _budget_notes(baseline: str, target: Mapping[str, float]) -> list[str]:
    return [
        "Generated: all rollouts, those that dynamic sampling dropped included, and the tokens of their completions. "
        "Mean ± sample standard deviation over the seeds; Pass@1 on all held-out problems.",
        f"Pass@1 at a budget: linear between the scored steps around it. The budget is the least that a run of "
        f"{baseline} had generated at its end, or up to {_YIELDS:.0%} less where every run then reaches it. A run "
        f"that ended before it does not count: (2 of 3) counted.",
        f"GRPO's best Pass@1: {target['pass@1']:.3f}, the best mean over the runs of {baseline} at a scored step. "
        f"Each run counts with its first scored step at or above it; steps are generation batches.",
    ]


def _some(values: Sequence[float | None], form: str, none: str = NOT_AVAILABLE) -> str:
    """Mean and deviation of those that are there, and of how many, where it is not all."""
    found = spread(values)
    return none if found is None else with_count(show_spread(found, form), found["runs"], len(values))


@dataclass(frozen=True)
class _Column:
    """A column of `training_table`: of each run some numbers, each of which is averaged over the runs."""

    title: str
    form: str
    of: Callable[[RunHistory], Sequence[float]]
    note: str = ""


def _column_cell(method: Method, column: _Column) -> str:
    found = [values for run in method.runs if (values := column.of(run))]
    return " → ".join(column.form.format(statistics.fmean(part)) for part in zip(*found, strict=True)) or NOT_AVAILABLE


def _known(run: RunHistory, key: str) -> list[float]:
    return [value for _, value in run.values(key) if number(value) is not None]


def _first_and_last(key: str) -> Callable[[RunHistory], Sequence[float]]:
    return lambda run: (known[0], known[-1]) if (known := _known(run, key)) else ()


def _mean(key: str) -> Callable[[RunHistory], Sequence[float]]:
    return lambda run: (statistics.fmean(known),) if (known := _known(run, key)) else ()


def _with_gradient(run: RunHistory) -> Sequence[float]:
    used = summary_of(run, run.name).used
    return () if used is None else (used,)


def _overhead(run: RunHistory) -> Sequence[float]:
    shares = [share for _, share in overhead(run) if number(share) is not None]
    return (statistics.fmean(shares),) if shares else ()


def _signal(run: RunHistory) -> Sequence[float]:
    """The median over the logs of tau_pos / tau_ref, where there was an HE prompt."""
    references = {step: value for step, value in run.values("miner/tau_ref") if number(value)}
    ratios = [
        value / references[step]
        for step, value in run.values("miner/tau_pos")
        if step in references and number(value) is not None
    ]
    return (statistics.median(ratios),) if ratios else ()


_COLUMNS = (
    _Column("Entropy", "{:.3f}", _first_and_last("entropy"), "Entropy: nats per completion token."),
    _Column("KL", "{:.4f}", _first_and_last("kl"), "KL to the reference model: nats per completion token."),
    _Column("Prompts all right", "{:.0%}", _first_and_last("groups/ph")),
    _Column(
        "Rollouts with a gradient", "{:.1%}", _with_gradient, "Rollouts with a gradient: of all that were generated."
    ),
    _Column(
        "tau_pos / tau_ref",
        "{:.1e}",
        _signal,
        "tau_pos / tau_ref: MINER's signal against GRPO's before the cap, median over the logs.",
    ),
    _Column("Cap binds", "{:.0%}", _mean("miner/cap_binds"), "Cap binds: share of the logged steps."),
    _Column(
        "Time for MINER", "{:.2%}", _overhead, "Time for MINER: of its advantages, as a share of the step's time."
    ),
)
