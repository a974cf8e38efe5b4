"""The tables and warnings of a report: its runs, the ablation, what a setting changes, scores of benchmarks."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..evaluation.alike import named_differences, sampling_differences
from ..runs.history import RunHistory, number
from ..runs.settings import DEFAULTS
from ..tables import Table
from .charts import COMPLETIONS, charts_of
from .comparison import NOT_AVAILABLE, compare_runs, mean_step_time, method_table, show_spread, spread, summary_of
from .curves import has_chart, overhead
from .grouping import Method, ablation_base, ablation_of, baseline_of, is_miner, settings_except
from .material import EvalResult
from .pass_curves import group_results

_VARIANTS = ("GRPO", "MINER", "w/o IR", "w/o FW", "w/o AC")
_HELD_OUT_SETTINGS = (
    "temperature",
    "top_p",
    "top_k",
    "max_completion_length",
    "score_problems",
    "score_samples",
    "score_benchmark",
    "dataset_name",
)
_SWEPT = {"miner_lambda_max": "the cap lambda_max", "miner_gamma": "the focus gamma"}
_OF_BENCHMARK = ("problems", "samples", "k", "fingerprint", "grader")


def runs_table(runs: Sequence[RunHistory]) -> Table:
    """One row per run: how far it went, and what it logged first and last."""
    header = ["Run", "Steps", "Reward", "Prompts all right", "Rollouts recovered", "Pass@1, held out"]
    header += ["Seconds per step", "MINER's share of the time"]
    rows = []
    for run in runs:
        seconds = mean_step_time(run.logs)
        shares = [share for _, share in overhead(run) if number(share) is not None]
        rows.append(
            [
                run.name,
                steps_done(run),
                _first_and_last(run.values("reward"), "{:.3f}"),
                _first_and_last(run.values("groups/ph"), "{:.0%}"),
                _first_and_last(run.values("rollouts/recovered"), "{:.0%}"),
                _first_and_last([(k, v["pass@1"]) for k, v in run.scores.items() if "pass@1" in v], "{:.3f}"),
                NOT_AVAILABLE if seconds is None else f"{seconds * (run.per_step or 1.0):.2f}",
                f"{sum(shares) / len(shares):.1%}" if shares else NOT_AVAILABLE,
            ]
        )
    notes = ["First logged value → last one. Held out: measured before → after the last training step scored."]
    notes += ["Steps of the optimizer. Seconds per generation batch, where the run recorded how many steps it has."]
    return Table("Runs", header, rows, notes)


def steps_done(run: RunHistory) -> str:
    """The steps of a run, and of how many."""
    done = f"{run.steps} of {run.planned}" if run.planned else str(run.steps)
    return done if run.finished else f"{done}, unfinished"


def compared_table(methods: Sequence[Method]) -> Table | None:
    """The table of `trl-miner compare` for the runs that were scored after training; None: there are none."""
    scored = [
        summary_of(run, method.label)
        for method in methods
        for run in method.runs
        if run.finished and run.scores and all("pass@1" in scores for scores in run.scores.values())
    ]
    if not scored:
        return None
    baseline = baseline_of(methods)
    label = None if baseline is None else baseline.label
    wanted = {method.label: len(method.runs) for method in methods}
    return method_table(compare_runs(scored, wanted, baseline=label))


def ablation_tables(methods: Sequence[Method], results: Sequence[EvalResult] = ()) -> list[Table]:
    """The paper's ablation, where MINER and at least one of its variants are there and share everything else."""
    groups: dict[Any, list[tuple[str, Method]]] = {}
    for method in methods:
        variant = ablation_of(method.runs[0])
        if variant is not None:
            groups.setdefault(ablation_base(method.runs[0]), []).append((variant, method))
    tables = []
    for found in groups.values():
        variants = {variant for variant, _ in found}
        if "MINER" in variants and variants & {"w/o IR", "w/o FW", "w/o AC"}:
            found = _without_sweeps(found)
            found.sort(key=lambda pair: _VARIANTS.index(pair[0]))
            tables.append(_ablation_table(found, methods, results))
    return tables


def _without_sweeps(found: Sequence[tuple[str, Method]]) -> list[tuple[str, Method]]:
    """Without the runs of MINER with another cap or focus than the default, where some have that."""
    swept = [
        (variant, method)
        for variant, method in found
        if variant == "MINER" and any(method.runs[0].setting(name) != DEFAULTS[name] for name in _SWEPT)
    ]
    miners = sum(variant == "MINER" for variant, _ in found)
    return list(found) if len(swept) == miners else [pair for pair in found if pair not in swept]


def sensitivity_tables(methods: Sequence[Method]) -> list[Table]:
    """For each setting of MINER in which alone some methods differ, their scores by its value."""
    tables = []
    for name, title in _SWEPT.items():
        groups: dict[Any, list[Method]] = {}
        for method in methods:
            if is_miner(method.runs[0]):
                groups.setdefault(settings_except(method.runs[0], name), []).append(method)
        for found in groups.values():
            if len({method.runs[0].setting(name) for method in found}) > 1:
                found.sort(key=lambda method: _as_number(method.runs[0].setting(name)))
                rows = [[_value(method.runs[0].setting(name)), *_outcome(method)] for method in found]
                header = [name, "Runs", "Pass@1", "Pass@K", "Reward", "Factor on PH advantages", "Rollouts recovered"]
                notes = ["The methods differ in this setting alone. Pass@1 and Pass@K: held-out problems, last score."]
                notes += ["Reward: last log. The other two: mean over all logs. Mean ± sample deviation over runs."]
                tables.append(Table(f"Sensitivity to {title}", header, rows, notes))
    return tables


def results_table(results: Sequence[EvalResult], methods: Sequence[Method] = ()) -> Table:
    """One row per result and benchmark, with intervals."""
    rows = []
    for method, own in group_results(results, methods):
        for result in own:
            name = method.label if len(own) == 1 else result.name
            for one in result.benchmarks.values():
                measured = [_interval(one, metric) for metric in ("pass@1", "pass@k", "maj@k")]
                counts = [str(one.get(key, NOT_AVAILABLE)) for key in ("problems", "samples", "k")]
                rows.append([name, str(one.get("title")), *counts, *measured])
    header = ["Model", "Benchmark", "Problems", "Samples", "K", "Pass@1", "Pass@K", "Maj@K"]
    notes = ["Percent. In brackets: 95 % bootstrap interval over the problems."]
    return Table("Scores of benchmarks", header, rows, notes)


def comparison_warnings(runs: Sequence[RunHistory], results: Sequence[EvalResult]) -> list[str]:
    """What stands between these runs or results and a fair comparison."""
    found = []
    scored = [run for run in runs if run.scores]
    for name in _HELD_OUT_SETTINGS:
        found += _differing(f"Held-out scores were measured with another {name}", scored, name)
    found += _differing("Runs start from another model_name_or_path", runs, "model_name_or_path")
    metrics = {tuple(sorted({name for scores in run.scores.values() for name in scores})): run.name for run in scored}
    if len(metrics) > 1:
        told = "; ".join(f"{', '.join(names)} in {run}" for names, run in metrics.items())
        found.append(f"Held-out scores are of other K: {told}.")
    for name in dict.fromkeys(name for result in results for name in result.benchmarks):
        first, *others = [result for result in results if name in result.benchmarks]
        for other in others:
            found.append(_not_alike(name, first, other))
    return [warning for warning in found if warning]


def unfinished_notes(runs: Sequence[RunHistory], methods: Sequence[Method]) -> list[str]:
    """Runs that stopped early, and what that does to the line of their method."""
    size = {str(run.folder): len(method.runs) for method in methods for run in method.runs}
    return [
        f"{run.name} is not finished: {steps_done(run).removesuffix(', unfinished')} steps."
        + (" Beyond, the line of its method is of the others." if size[str(run.folder)] > 1 else "")
        for run in runs
        if not run.finished
    ]


def missing_notes(methods: Sequence[Method]) -> list[str]:
    """What no run, or only some, recorded of each chart, and the option that records it."""
    notes = []
    for chart in [chart for chart in charts_of([]).values() if chart is not COMPLETIONS]:
        able = [m for m in methods if not chart.of_miner or not m.runs[0].settings or is_miner(m.runs[0])]
        lacking = [m for m in able if not any(has_chart(chart, run) for run in m.runs)]
        if lacking or not able:
            whose = "" if len(lacking) == len(able) else f" by {_some([method.label for method in lacking])}"
            notes.append(f"{chart.title}: not recorded{whose}. To record it: {chart.recorded_by}.")
    return notes


def _ablation_table(
    found: Sequence[tuple[str, Method]], methods: Sequence[Method], results: Sequence[EvalResult]
) -> Table:
    variants = [variant for variant, _ in found]
    own = {method.label: several for method, several in group_results(results, methods)}
    shown = {
        name: (one.get("title"), one.get("k"))
        for _, method in found
        for result in own.get(method.label, ())
        for name, one in result.benchmarks.items()
    }
    header = ["Variant", "Runs", "Pass@1, held out", "Pass@K, held out"]
    header += [f"{title} P@{k}" for title, largest in shown.values() for k in (1, largest)]
    rows = []
    for variant, method in found:
        name = variant if variants.count(variant) == 1 else f"{variant} ({method.label})"
        cells = [name, *_outcome(method)[:3]]
        for benchmark in shown:
            for metric in ("pass@1", "pass@k"):
                cells.append(show_spread(_benchmark_spread(own.get(method.label, ()), benchmark, metric), "{:.2f}"))
        rows.append(cells)
    notes = [
        "w/o IR: a constant instead of the intrinsic reward. w/o FW: every token the same weight. w/o AC: no cap."
    ]
    notes += ["Mean ± sample deviation over runs. Benchmarks in percent."] if shown else ["Mean ± sample deviation."]
    paper = _paper_rows(found[0][1].runs[0], shown) if shown else []
    if paper:
        notes.append("Paper: arXiv 2601.04731, same base model and benchmark; its P@K only where K is the same.")
    return Table("Ablation", header, [*rows, *paper], notes)


def _paper_rows(run: RunHistory, shown: Mapping[str, tuple[Any, Any]]) -> list[list[str]]:
    """The paper's numbers, where the base model is the paper's, and for benchmarks that are."""
    from ..evaluation.paper import known_base_model, load_paper

    printed = load_paper()
    known = known_base_model(run.setting("model_name_or_path") or "")
    table = printed["ablation"].get(known, {})
    if not any(title in row for row in table.values() for title, _ in shown.values()):
        return []
    rows = []
    for variant, scores in table.items():
        cells = [f"Paper: {variant}", "", "", ""]
        for title, k in shown.values():
            first, last = scores.get(title, (None, None))
            same = printed["k"].get(title) == k
            cells += ["-" if first is None else f"{first:.2f}", f"{last:.2f}" if same and last is not None else "-"]
        rows.append(cells)
    return rows


def _outcome(method: Method) -> list[str]:
    """Runs, Pass@1, Pass@K, reward, factor and recovered rollouts of a method."""
    finals = [run.scores[max(run.scores)] for run in method.runs if run.scores]
    ks = [int(name[5:]) for final in finals for name in final if name.startswith("pass@") and name[5:].isdigit()]
    passes: list[list[float | None]] = [[final.get(f"pass@{k}") for final in finals] for k in (1, max(ks, default=1))]
    rewards: list[float | None] = [values[-1][1] for run in method.runs if (values := _known(run.values("reward")))]
    means: list[list[float | None]] = [
        [sum(value for _, value in values) / len(values) for run in method.runs if (values := _known(run.values(key)))]
        for key in ("miner/scale", "rollouts/recovered")
    ]
    forms = ("{:.3f}", "{:.3f}", "{:.3f}", "{:.3f}", "{:.1%}")
    shown = [show_spread(spread(v), form) for v, form in zip((*passes, rewards, *means), forms, strict=True)]
    return [str(len(method.runs)), *shown]


def _benchmark_spread(results: Sequence[EvalResult], name: str, metric: str) -> dict[str, Any] | None:
    found = [
        number(result.benchmarks.get(name, {}).get("intervals", {}).get(metric, {}).get("mean")) for result in results
    ]
    return spread([None if value is None else 100 * value for value in found])


def _interval(one: Mapping[str, Any], metric: str) -> str:
    found = one.get("intervals", {}).get(metric)
    if not found:
        return NOT_AVAILABLE
    return "{:.1f} ({:.1f} to {:.1f})".format(*(100 * found[part] for part in ("mean", "low", "high")))


def _differing(what: str, runs: Sequence[RunHistory], name: str) -> list[str]:
    """A warning where runs that recorded a setting differ in it. What a recipe leaves out is its default."""
    values: dict[str, list[str]] = {}
    for run in runs:
        if name in run.settings or run.method is not None:
            values.setdefault(run.settings.get(name, "default"), []).append(run.name)
    if len(values) < 2:
        return []
    return [f"{what}: {'; '.join(f'{value} in {_some(names)}' for value, names in values.items())}."]


def _not_alike(name: str, first: EvalResult, other: EvalResult) -> str:
    """In what two results of one benchmark differ that makes their scores differ; empty: in nothing."""
    differing = sampling_differences(first.settings, other.settings)
    of_first, of_other = first.benchmarks[name], other.benchmarks[name]
    differing += named_differences({key: (of_first.get(key), of_other.get(key)) for key in _OF_BENCHMARK})
    if not differing:
        return ""
    return f"{name}: {_whose(first)} and {_whose(other)} were not measured alike: {'; '.join(differing)}."


def _whose(result: EvalResult) -> str:
    return f"{result.name} ({result.folder.name})"


def _first_and_last(points: Sequence[tuple[float, float]], form: str) -> str:
    known = _known(points)
    if not known:
        return NOT_AVAILABLE
    first, last = form.format(known[0][1]), form.format(known[-1][1])
    return first if len(known) == 1 else f"{first} → {last}"


def _known(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(step, value) for step, value in points if number(value) is not None]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _as_number(value: str | None) -> float:
    try:
        return float(value or "inf")
    except ValueError:
        return float("inf")  # no cap


def _value(value: str | None) -> str:
    return "no cap" if value == "None" else str(value)
