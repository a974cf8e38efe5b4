"""Tables with a row per method: the comparison, what training did, the ablation, what a setting changes."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..evaluation.paper import known_base_model, load_paper
from ..runs.dose import KINDS, dose_of, dose_reached
from ..runs.history import RunHistory, number
from ..runs.settings import DEFAULTS
from ..tables import Table
from .comparison import compare_runs, comparison_table, is_scored, summary_of
from .curves import overhead
from .grouping import (
    Method,
    ablation_base,
    ablation_of,
    baseline_of,
    every_setting,
    group_results,
    is_miner,
    settings_except,
)
from .material import EvalResult
from .spreads import NOT_AVAILABLE, as_number, known_values, show_spread, spread

_VARIANTS = ("GRPO", "MINER", "w/o IR", "w/o FW", "w/o AC")
_SWEPT = {"miner_lambda_max": "the cap lambda_max", "miner_gamma": "the focus gamma"}


@dataclass(frozen=True)
class _Column:
    """A column of `training_table`: of each run some numbers, each of which is averaged over the runs."""

    title: str
    form: str
    of: Callable[[RunHistory], Sequence[float]]
    note: str = ""

    def cell(self, method: Method) -> str:
        numbers = [values for run in method.runs if (values := self.of(run))]
        means = map(statistics.fmean, zip(*numbers, strict=True))
        return " → ".join(map(self.form.format, means)) or NOT_AVAILABLE


def methods_table(methods: Sequence[Method]) -> Table | None:
    """Return the table of `trl-miner compare` for the runs that were scored after training; None: there are none."""
    scored = [summary_of(run, method.label) for method in methods for run in filter(is_scored, method.runs)]
    if not scored:
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
        "Dose: how strongly the methods of all-right and all-wrong prompts act beside that of mixed ones. L1 mass: "
        "sum of |advantage| over the tokens, as a share of that of mixed prompts. Means over the logs and the runs."
    ]
    return Table("Methods by kind of prompt, and their dose", header, rows, notes, is_text=True) if rows else None


def training_table(methods: Sequence[Method]) -> Table | None:
    """Return entropy, KL, kinds of prompt, MINER's cap, its time, and runs that stopped, by method; None: no runs."""
    columns = [column for column in _COLUMNS if any(column.of(run) for method in methods for run in method.runs)]
    if not columns:
        return None
    rows = []
    for method in methods:
        unfinished = sum(not run.finished for run in method.runs)
        rows.append([method.label, str(len(method.runs)), *(one.cell(method) for one in columns), str(unfinished)])
    header = ["Method", "Runs", *(column.title for column in columns), "Runs not finished"]
    notes = ["Means over the runs. First → last: the first and the last logged value."]
    return Table("What training did", header, rows, [*notes, *(column.note for column in columns if column.note)])


def ablation_tables(methods: Sequence[Method], results: Sequence[EvalResult] = ()) -> list[Table]:
    """Return the paper's ablation, where MINER and a variant of it are there and share everything else."""
    groups: dict[Any, list[tuple[str, Method]]] = {}
    for method in methods:
        variant = ablation_of(method.runs[0])
        if variant is not None:
            groups.setdefault(ablation_base(method.runs[0]), []).append((variant, method))
    tables = []
    for group in groups.values():
        variants = {variant for variant, _ in group}
        if "MINER" in variants and variants & {"w/o IR", "w/o FW", "w/o AC"}:
            ordered = sorted(_without_sweeps(group), key=lambda pair: _VARIANTS.index(pair[0]))
            tables.append(_ablation_table(ordered, methods, results))
    return tables


def sensitivity_tables(methods: Sequence[Method]) -> list[Table]:
    """Return the scores by the value of each setting of MINER in which alone some methods differ."""
    tables = []
    for name, title in _SWEPT.items():
        groups: dict[Any, list[Method]] = {}
        for method in methods:
            if is_miner(method.runs[0]):
                groups.setdefault(settings_except(method.runs[0], name), []).append(method)
        for group in groups.values():
            values = {method.label: method.runs[0].setting(name) for method in group}
            if len(set(values.values())) > 1:
                group.sort(key=lambda method: as_number(values[method.label], math.inf))  # no cap comes last
                shown = {label: "no cap" if value == "None" else str(value) for label, value in values.items()}
                rows = [[shown[method.label], *_outcome(method)] for method in group]
                header = [name, "Runs", "Pass@1", "Pass@K", "Reward", "Factor on PH advantages", "Rollouts recovered"]
                notes = ["The methods differ in this setting alone. Pass@1 and Pass@K: held-out problems, last score."]
                notes += ["Reward: last log. The other two: mean over all logs. Mean ± sample deviation over runs."]
                tables.append(Table(f"Sensitivity to {title}", header, rows, notes))
    return tables


def _without_sweeps(group: Sequence[tuple[str, Method]]) -> list[tuple[str, Method]]:
    """Leave out the runs of MINER with another cap or focus than the default, where some have that."""

    def is_swept(variant: str, method: Method) -> bool:
        run = method.runs[0]
        return variant == "MINER" and any(run.setting(name) != DEFAULTS[name] for name in _SWEPT)

    kept = [pair for pair in group if not is_swept(*pair)]
    return kept if any(variant == "MINER" for variant, _ in kept) else list(group)


def _ablation_table(
    group: Sequence[tuple[str, Method]], methods: Sequence[Method], results: Sequence[EvalResult]
) -> Table:
    variants = [variant for variant, _ in group]
    results_of = {method.label: several for method, several in group_results(results, methods)}
    benchmarks = {
        name: (one.get("title"), one.get("k"))
        for _, method in group
        for result in results_of.get(method.label, ())
        for name, one in result.benchmarks.items()
    }
    header = ["Variant", "Runs", "Pass@1, held out", "Pass@K, held out"]
    header += [f"{title} P@{k}" for title, largest in benchmarks.values() for k in (1, largest)]
    rows = []
    for variant, method in group:
        own = results_of.get(method.label, ())
        name = variant if variants.count(variant) == 1 else f"{variant} ({method.label})"
        scores = [_score(own, benchmark, metric) for benchmark in benchmarks for metric in ("pass@1", "pass@k")]
        rows.append([name, *_outcome(method)[:3], *scores])
    notes = [
        "w/o IR: a constant instead of the intrinsic reward. w/o FW: every token the same weight. w/o AC: no cap."
    ]
    notes += ["Mean ± sample deviation" + (" over runs. Benchmarks in percent." if benchmarks else ".")]
    paper = _paper_rows(group[0][1].runs[0], benchmarks) if benchmarks else []
    if paper:
        notes.append("Paper: arXiv 2601.04731, same base model and benchmark; its P@K only where K is the same.")
    return Table("Ablation", header, [*rows, *paper], notes)


def _paper_rows(run: RunHistory, benchmarks: Mapping[str, tuple[Any, Any]]) -> list[list[str]]:
    """Return the paper's numbers, where the base model is the paper's, and for benchmarks that are."""
    printed = load_paper()
    table = printed["ablation"].get(known_base_model(run.setting("model_name_or_path") or ""), {})
    if not any(title in row for row in table.values() for title, _ in benchmarks.values()):
        return []
    rows = []
    for variant, scores in table.items():
        cells = [f"Paper: {variant}", "", "", ""]
        for title, k in benchmarks.values():
            first, last = scores.get(title, (None, None))
            is_same = printed["k"].get(title) == k and last is not None
            cells += ["-" if first is None else f"{first:.2f}", f"{last:.2f}" if is_same else "-"]
        rows.append(cells)
    return rows


def _outcome(method: Method) -> list[str]:
    """Return runs, Pass@1, Pass@K, reward, factor and recovered rollouts of a method."""
    finals = [run.scores[max(run.scores)] for run in method.runs if run.scores]
    ks = [int(name[5:]) for final in finals for name in final if name.startswith("pass@") and name[5:].isdigit()]
    keys = ("reward", "miner/scale", "rollouts/recovered")
    logged = {key: [values for run in method.runs if (values := known_values(run, key))] for key in keys}
    measured: list[tuple[list[float | None], str]] = [
        ([final.get("pass@1") for final in finals], "{:.3f}"),
        ([final.get(f"pass@{max(ks, default=1)}") for final in finals], "{:.3f}"),
        ([*(values[-1] for values in logged["reward"])], "{:.3f}"),
        ([*map(statistics.fmean, logged["miner/scale"])], "{:.3f}"),
        ([*map(statistics.fmean, logged["rollouts/recovered"])], "{:.1%}"),
    ]
    return [str(len(method.runs)), *(show_spread(spread(values), form) for values, form in measured)]


def _score(results: Sequence[EvalResult], benchmark: str, metric: str) -> str:
    intervals = [result.benchmarks.get(benchmark, {}).get("intervals", {}) for result in results]
    shares = [number(by_metric.get(metric, {}).get("mean")) for by_metric in intervals]
    return show_spread(spread([None if share is None else 100 * share for share in shares]), "{:.2f}")


def _ends(key: str) -> Callable[[RunHistory], Sequence[float]]:
    return lambda run: (known[0], known[-1]) if (known := known_values(run, key)) else ()


def _mean(key: str) -> Callable[[RunHistory], Sequence[float]]:
    return lambda run: (statistics.fmean(known),) if (known := known_values(run, key)) else ()


def _with_gradient(run: RunHistory) -> Sequence[float]:
    used = summary_of(run, run.name).used
    return () if used is None else (used,)


def _overhead(run: RunHistory) -> Sequence[float]:
    shares = [share for _, share in overhead(run) if number(share) is not None]
    return (statistics.fmean(shares),) if shares else ()


def _signal(run: RunHistory) -> Sequence[float]:
    """Return the median over the logs of tau_pos / tau_ref, where there was an HE prompt."""
    references = {step: value for step, value in run.values("miner/tau_ref") if number(value)}
    ratios = [
        value / references[step]
        for step, value in run.values("miner/tau_pos")
        if step in references and number(value) is not None
    ]
    return (statistics.median(ratios),) if ratios else ()


_COLUMNS = (
    _Column("Entropy", "{:.3f}", _ends("entropy"), "Entropy: nats per completion token."),
    _Column("KL", "{:.4f}", _ends("kl"), "KL to the reference model: nats per completion token."),
    _Column("Prompts all right", "{:.0%}", _ends("groups/ph")),
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
