"""The tables of `trl-miner report`, and that of `trl-miner compare`, which starts without numpy.

A *step* of the table of methods is one generation batch, as in the papers, however many optimizer
steps it has.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from ..common.tables import Table
from ..runs.history import RunHistory
from .inputs import NOT_AVAILABLE, Method, method_settings


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


def final_scores(run: RunHistory) -> Mapping[str, float]:
    """Return the last scores on held-out problems; empty: there are none."""
    return run.scores[max(run.scores)] if run.scores else {}


def methods_table(methods: Mapping[str, Sequence[RunHistory | None]]) -> Table:
    """Return the table with a row for each method, of its runs; None is a run that was not scored
    after training."""
    runs = {label: [run for run in own if run is not None] for label, own in methods.items()}
    ks = [
        int(name.split("@")[1])
        for own in runs.values()
        for run in own
        for name in final_scores(run)
    ]
    forms = dict.fromkeys(("Pass@1", f"Pass@{max(ks, default=1)}"), "{:.3f}")
    forms |= {
        "Seconds per step": "{:.2f}",
        "Rollouts generated": "{:,.0f}",
        "Rollouts with a gradient": "{:.1%}",
    }
    rows = []
    for label, own in runs.items():
        numbers = [_numbers(run) for run in own]
        cells = [
            spread_text([one.get(title) for one in numbers], form) for title, form in forms.items()
        ]
        of = "" if len(own) == len(methods[label]) else f" of {len(methods[label])}"
        rows.append([label, f"{len(own)}{of}", *cells])
    notes = [
        "Mean ± sample standard deviation over the seeds. Pass@k after training, on the held-out"
        " problems. A step is one generation batch."
    ]
    return Table("Methods", ["Method", "Runs", *forms], rows, notes)


def _numbers(run: RunHistory) -> dict[str, float | None]:
    """Return the numbers of one run by column; None: not recorded."""
    seconds = _known(run, "step_time")  # of an optimizer step, without the scoring
    generated, used = (_known(run, f"rollouts/{name}_total")[-1:] for name in ("generated", "used"))
    return {
        **{name.capitalize(): score for name, score in final_scores(run).items()},
        "Seconds per step": statistics.fmean(seconds) * (run.per_step or 1.0) if seconds else None,
        # those that dynamic sampling dropped included
        "Rollouts generated": generated[0] if generated else None,
        "Rollouts with a gradient": (
            used[0] / generated[0] if used and generated and generated[0] else None
        ),
    }


def _known(run: RunHistory, metric: str) -> list[float]:
    return [value for _, value in run.values(metric) if value == value]  # NaN: no finite number


def settings_table(methods: Sequence[Method]) -> Table | None:
    """Return the settings in which methods differ, a row each; None: there are none."""
    known = {
        method.label: method_settings(method.runs[0])
        for method in methods
        if method.runs[0].settings
    }
    names = sorted({name for own in known.values() for name in own})
    rows = [
        [name, *(own.get(name, "default").removesuffix(".0") for own in known.values())]
        for name in names
    ]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Table("Settings that differ", ["Setting", *known], rows, is_text=True) if rows else None
