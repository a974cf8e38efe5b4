"""Tables of a report with a row per method, run, result of `trl-miner eval`, or rollout."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..evaluation.paper import known_base_model, load_paper
from ..runs.dose import KINDS, dose_of, dose_reached
from ..runs.history import RunHistory, number
from ..tables import Table
from ..text import one_line
from .cells import NOT_AVAILABLE, as_number, show_spread, spread
from .comparison import compare_runs, comparison_table, is_scored, mean_step_time, summary_of
from .completions import Completions
from .frame import Metrics
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

_VARIANTS = ("GRPO", "MINER", "w/o IR", "w/o FW", "w/o AC")
_SWEPT = {"miner_lambda_max": "the cap lambda_max", "miner_gamma": "the focus gamma"}
_ENDS = ("first", "last")
_TRAINING = (  # of a column: title, metric, how it is shown, what of each run, and a note
    ("Entropy", "entropy", "{:.3f}", _ENDS, "Entropy: nats per completion token."),
    ("KL", "kl", "{:.4f}", _ENDS, "KL to the reference model: nats per completion token."),
    ("Prompts all right", "groups/ph", "{:.0%}", _ENDS, ""),
    (
        "Rollouts with a gradient",
        "used_share",
        "{:.1%}",
        ("last",),
        "Rollouts with a gradient: of all that were generated.",
    ),
    (
        "tau_pos / tau_ref",
        "tau_ratio",
        "{:.1e}",
        ("median",),
        "tau_pos / tau_ref: MINER's signal against GRPO's before the cap, median over the logs.",
    ),
    ("Cap binds", "miner/cap_binds", "{:.0%}", ("mean",), "Cap binds: share of the logged steps."),
    (
        "Time for MINER",
        "overhead",
        "{:.2%}",
        ("mean",),
        "Time for MINER: of its advantages, as a share of the step's time.",
    ),
)
_OUTCOME = {"reward": ("last", "{:.3f}"), "miner/scale": ("mean", "{:.3f}"), "rollouts/recovered": ("mean", "{:.1%}")}
METRICS = (*(metric for _, metric, *_ in _TRAINING), *_OUTCOME, "eval:pass@1")


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


def training_table(metrics: Metrics) -> Table | None:
    """Return entropy, KL, kinds of prompt, MINER's cap, its time, and runs that stopped, by method; None: no runs."""
    every = [run for method in metrics.methods for run in method.runs]
    columns = [column for column in _TRAINING if metrics.of(every, column[1])]
    if not columns:
        return None
    rows = []
    for method in metrics.methods:
        cells = [metrics.cell(method.runs, metric, form, *whats) for _, metric, form, whats, _ in columns]
        rows.append([method.label, str(len(method.runs)), *cells, str(sum(not run.finished for run in method.runs))])
    header = ["Method", "Runs", *(title for title, *_ in columns), "Runs not finished"]
    notes = ["Means over the runs. First → last: the first and the last logged value."]
    return Table("What training did", header, rows, [*notes, *(note for *_, note in columns if note)])


def runs_table(runs: Sequence[RunHistory], metrics: Metrics) -> Table:
    """Return one row per run: how far it went, and what it logged first and last."""
    header = ["Run", "Steps", "Reward", "Prompts all right", "Rollouts recovered", "Pass@1, held out"]
    header += ["Seconds per step", "MINER's share of the time"]
    columns = (
        ("reward", "{:.3f}"),
        ("groups/ph", "{:.0%}"),
        ("rollouts/recovered", "{:.0%}"),
        ("eval:pass@1", "{:.3f}"),
    )
    rows = []
    for run in runs:
        seconds = mean_step_time(run)
        per_step = NOT_AVAILABLE if seconds is None else f"{seconds * (run.per_step or 1.0):.2f}"
        cells = [metrics.cell([run], metric, form, *_ENDS) for metric, form in columns]
        rows.append([run.name, steps_done(run), *cells, per_step, metrics.cell([run], "overhead", "{:.1%}", "mean")])
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


def ablation_tables(metrics: Metrics, results: Sequence[EvalResult] = ()) -> list[Table]:
    """Return the paper's ablation, where MINER and a variant of it are there and share everything else."""
    groups: dict[Any, list[tuple[str, Method]]] = {}
    for method in metrics.methods:
        variant = ablation_of(method.runs[0])
        if variant is not None:
            groups.setdefault(ablation_base(method.runs[0]), []).append((variant, method))
    tables = []
    for group in groups.values():
        variants = {variant for variant, _ in group}
        if "MINER" in variants and variants & {"w/o IR", "w/o FW", "w/o AC"}:
            ordered = sorted(group, key=lambda pair: _VARIANTS.index(pair[0]))
            tables.append(_ablation_table(ordered, metrics, results))
    return tables


def sensitivity_tables(metrics: Metrics) -> list[Table]:
    """Return the scores by the value of each setting of MINER in which alone some methods differ."""
    tables = []
    for name, title in _SWEPT.items():
        groups: dict[Any, list[Method]] = {}
        for method in metrics.methods:
            if is_miner(method.runs[0]):
                groups.setdefault(settings_except(method.runs[0], name), []).append(method)
        for group in groups.values():
            values = {method.label: method.runs[0].setting(name) for method in group}
            if len(set(values.values())) > 1:
                group.sort(key=lambda method: as_number(values[method.label], math.inf))  # no cap comes last
                shown = {label: "no cap" if value == "None" else str(value) for label, value in values.items()}
                rows = [[shown[method.label], *_outcome(metrics, method)] for method in group]
                header = [name, "Runs", "Pass@1", "Pass@K", "Reward", "Factor on PH advantages", "Rollouts recovered"]
                notes = ["The methods differ in this setting alone. Pass@1 and Pass@K: held-out problems, last score."]
                notes += ["Reward: last log. The other two: mean over all logs. Mean ± sample deviation over runs."]
                tables.append(Table(f"Sensitivity to {title}", header, rows, notes))
    return tables


def _ablation_table(group: Sequence[tuple[str, Method]], metrics: Metrics, results: Sequence[EvalResult]) -> Table:
    variants = [variant for variant, _ in group]
    results_of = {method.label: several for method, several in group_results(results, metrics.methods)}
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
        rows.append([name, *_outcome(metrics, method)[:3], *scores])
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


def _outcome(metrics: Metrics, method: Method) -> list[str]:
    """Return runs, Pass@1, Pass@K, reward, factor and recovered rollouts of a method."""
    finals = [run.scores[max(run.scores)] for run in method.runs if run.scores]
    ks = [int(name[5:]) for final in finals for name in final if name.startswith("pass@") and name[5:].isdigit()]
    scores = [spread([final.get(f"pass@{k}") for final in finals]) for k in (1, max(ks, default=1))]
    logged = [(spread(metrics.of(method.runs, key, what)), form) for key, (what, form) in _OUTCOME.items()]
    cells = [(score, "{:.3f}") for score in scores] + logged
    return [str(len(method.runs)), *(show_spread(*cell) for cell in cells)]


def _score(results: Sequence[EvalResult], benchmark: str, metric: str) -> str:
    intervals = [result.benchmarks.get(benchmark, {}).get("intervals", {}) for result in results]
    shares = [number(by_metric.get(metric, {}).get("mean")) for by_metric in intervals]
    return show_spread(spread([None if share is None else 100 * share for share in shares]), "{:.2f}")


def _interval(one: Mapping[str, Any], metric: str) -> str:
    measured = one.get("intervals", {}).get(metric)
    if not measured:
        return NOT_AVAILABLE
    return "{:.1f} ({:.1f} to {:.1f})".format(*(100 * measured[part] for part in ("mean", "low", "high")))
