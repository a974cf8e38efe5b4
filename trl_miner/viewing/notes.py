"""What a reader of a report must know: unfair comparisons, unfinished runs, what was not recorded or not read."""

from collections.abc import Mapping, Sequence

from ..evaluation.alike import named_differences, sampling_differences
from ..runs.history import RunHistory
from ..runs.token_credit import FOLDER as CREDIT
from .charts import COMPLETIONS, charts_of
from .completions import Completions
from .curves import has_chart
from .frame import Metrics
from .grouping import Method, is_miner
from .material import EvalResult, ReportInputs
from .method_tables import steps_done

_HELD_OUT_SETTINGS = (
    *("temperature", "top_p", "top_k", "max_completion_length"),
    *("held_out", "score_samples", "dataset_name"),
)
_OF_BENCHMARK = ("problems", "samples", "k", "fingerprint", "grader")


def comparison_warnings(runs: Sequence[RunHistory], results: Sequence[EvalResult]) -> list[str]:
    """Return what stands between these runs or results and a fair comparison."""
    warnings = []
    scored = [run for run in runs if run.scores]
    for name in _HELD_OUT_SETTINGS:
        warnings += _differing(f"Held-out scores were measured with another {name}", scored, name)
    warnings += _differing("Runs start from another model_name_or_path", runs, "model_name_or_path")
    metrics = {tuple(sorted({name for scores in run.scores.values() for name in scores})): run.name for run in scored}
    if len(metrics) > 1:
        listed = "; ".join(f"{', '.join(names)} in {run}" for names, run in metrics.items())
        warnings.append(f"Held-out scores are of other K: {listed}.")
    for name in dict.fromkeys(name for result in results for name in result.benchmarks):
        first, *others = [result for result in results if name in result.benchmarks]
        for other in others:
            warnings += _not_alike(name, first, other)
    return warnings


def unfinished_notes(runs: Sequence[RunHistory], methods: Sequence[Method]) -> list[str]:
    """Name the runs that stopped early, and say what that does to the line of their method."""
    size = {str(run.folder): len(method.runs) for method in methods for run in method.runs}
    return [
        f"{run.name} is not finished: {steps_done(run).removesuffix(', unfinished')} steps."
        + (" Beyond, the line of its method is of the others." if size[str(run.folder)] > 1 else "")
        for run in runs
        if not run.finished
    ]


def missing_notes(metrics: Metrics) -> list[str]:
    """Name the charts that no run, or only some, recorded, and the setting that records each."""
    notes = []
    for chart in charts_of([]).values():
        able = [m for m in metrics.methods if not chart.of_miner or not m.runs[0].settings or is_miner(m.runs[0])]
        lacking = [m for m in able if not any(has_chart(chart, metrics, run) for run in m.runs)]
        if chart is not COMPLETIONS and (lacking or not able):
            whose = "" if len(lacking) == len(able) else f" by {_some([method.label for method in lacking])}"
            notes.append(f"{chart.title}: not recorded{whose}. To record it: {chart.recorded_by}.")
    return notes


def missing_text_notes(runs: Sequence[RunHistory], completions: Mapping[str, Completions]) -> list[str]:
    """Say which runs recorded no completions, and whether none recorded its token credit."""
    notes = []
    lacking = sum(str(run.folder) not in completions for run in runs)
    if lacking:
        whose = "" if lacking == len(runs) else f" by {lacking} of {len(runs)} runs"
        notes.append(f"{COMPLETIONS.title}: not recorded{whose}. To record it: {COMPLETIONS.recorded_by}.")
    if runs and not any((run.folder / CREDIT).is_dir() for run in runs):
        notes.append(
            "Credit of each token: not recorded. To record it: log_token_credit: 10. To see it: trl-miner inspect RUN."
        )
    return notes


def reading_notes(material: ReportInputs, completions: Mapping[str, Completions]) -> list[str]:
    """Say what could not be read of the runs, or was read in another way than a reader may think."""
    notes = [f"{run.name}: {note}" for run in material.runs for note in run.notes]
    for run in material.runs:
        if str(run.folder) in completions:
            notes += [f"{run.name}: {note}" for note in completions[str(run.folder)].notes]
    unknown = [run.name for run in material.runs if not run.settings]
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


def _not_alike(name: str, first: EvalResult, other: EvalResult) -> list[str]:
    """Return a warning where two results of one benchmark differ in more than the model."""
    differing = sampling_differences(first.settings, other.settings)
    differing += named_differences(
        {key: (first.benchmarks[name].get(key), other.benchmarks[name].get(key)) for key in _OF_BENCHMARK}
    )
    if not differing:
        return []
    names = " and ".join(f"{result.name} ({result.folder.name})" for result in (first, other))
    return [f"{name}: {names} were not measured alike: {'; '.join(differing)}."]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
