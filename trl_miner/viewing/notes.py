"""What a reader of a report must know: unfair comparisons, unfinished runs, what was not recorded."""

from collections.abc import Sequence

from ..evaluation.alike import named_differences, sampling_differences
from ..runs.history import RunHistory
from ..runs.token_credit import FOLDER as CREDIT
from .charts import charts_of
from .frame import Metrics
from .inputs import EvalResult, Inputs, Method
from .tables import completions_files, steps_done

_HELD_OUT_SETTINGS = "temperature top_p top_k max_completion_length held_out score_samples dataset_name".split()
_OF_BENCHMARK = ("problems", "samples", "k", "fingerprint", "grader")


def comparison_warnings(inputs: Inputs) -> list[str]:
    """Return what stands between these runs or results and a fair comparison."""
    warnings, results = [], inputs.results
    scored = [run for run in inputs.runs if run.scores]
    for name in _HELD_OUT_SETTINGS:
        warnings += _differing(f"Held-out scores were measured with another {name}", scored, name)
    warnings += _differing("Runs start from another model_name_or_path", inputs.runs, "model_name_or_path")
    metrics = {tuple(sorted({name for scores in run.scores.values() for name in scores})): run.name for run in scored}
    if len(metrics) > 1:
        listed = "; ".join(f"{', '.join(names)} in {run}" for names, run in metrics.items())
        warnings.append(f"Held-out scores are of other K: {listed}.")
    for name in dict.fromkeys(name for result in results for name in result.benchmarks):
        first, *others = [result for result in results if name in result.benchmarks]
        warnings += [warning for other in others if (warning := _not_alike(name, first, other))]
    return warnings


def unfinished_notes(methods: Sequence[Method]) -> list[str]:
    """Name the runs that stopped early, and say what that does to the line of their method."""
    return [
        f"{run.name} is not finished: {steps_done(run)} steps."
        + " Beyond, the line of its method is of the others." * (len(method.runs) > 1)
        for method in methods
        for run in method.runs
        if not run.finished
    ]


def missing_notes(runs: Sequence[RunHistory], metrics: Metrics) -> list[str]:
    """Name the charts and records that no run has, and the setting that records each."""
    charts = [chart for chart in charts_of(runs).values() if not metrics.has_any(chart)]
    missing = {chart.title: chart.recorded_by for chart in charts}
    if not any(completions_files(run.folder) for run in runs):
        missing["Completions"] = "log_completions: true"
    if not any((run.folder / CREDIT).is_dir() for run in runs):
        missing["Credit of each token"] = "log_token_credit: 10. To see it: trl-miner inspect RUN"
    return [f"{title}: not recorded. To record it: {how}." for title, how in missing.items()] if runs else []


def reading_notes(runs: Sequence[RunHistory]) -> list[str]:
    """Say what could not be read of the runs, or was read in another way than a reader may think."""
    notes = [f"{run.name}: {note}" for run in runs for note in run.notes]
    unknown = [run.name for run in runs if not run.settings]
    if unknown:
        notes.append(f"No settings are recorded of {', '.join(unknown)}: each is a method of its own.")
    return notes


def _differing(warning: str, runs: Sequence[RunHistory], name: str) -> list[str]:
    """Return a warning where runs that recorded a setting differ in it; where a recipe leaves it out, the default."""
    values: dict[str, list[str]] = {}
    for run in runs:
        if name in run.settings or run.method is not None:
            values.setdefault(run.settings.get(name, "default"), []).append(run.name)
    if len(values) < 2:
        return []
    return [f"{warning}: {'; '.join(f'{value} in {_some(names)}' for value, names in values.items())}."]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _not_alike(name: str, first: EvalResult, other: EvalResult) -> str | None:
    """Return a warning where two results of one benchmark differ in more than the model."""
    differing = sampling_differences(first.settings, other.settings)
    differing += named_differences(
        {key: (first.benchmarks[name].get(key), other.benchmarks[name].get(key)) for key in _OF_BENCHMARK}
    )
    names = " and ".join(f"{result.name} ({result.folder.name})" for result in (first, other))
    return f"{name}: {names} were not measured alike: {'; '.join(differing)}." if differing else None
