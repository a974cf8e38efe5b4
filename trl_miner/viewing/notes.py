"""What a reader of a report must know: unfair comparisons, unfinished runs, what could not be read."""

from collections.abc import Sequence

from ..evaluation.alike import named_differences, sampling_differences
from ..runs.history import RunHistory
from .frame import runs_of
from .inputs import EvalResult, Inputs, Method
from .tables import steps_done

_OF_SCORES = "temperature top_p top_k max_completion_length held_out score_samples dataset_name".split()
_OF_BENCHMARK = ("problems", "samples", "k", "fingerprint", "grader")


def comparison_warnings(inputs: Inputs) -> list[str]:
    """Return what stands between these runs or results and a fair comparison."""
    scored = [run for run in inputs.runs if run.scores]
    warnings = _differing(inputs.runs, "model_name_or_path", "Runs start from another")
    for name in _OF_SCORES:
        warnings += _differing(scored, name, "Held-out scores were measured with another")
    for name in dict.fromkeys(name for result in inputs.results for name in result.benchmarks):
        first, *others = [result for result in inputs.results if name in result.benchmarks]
        warnings += [warning for other in others if (warning := _not_alike(name, first, other))]
    return warnings


def unfinished_notes(methods: Sequence[Method]) -> list[str]:
    """Name the runs that stopped early, and say what that does to the line of their method."""
    return [
        f"{run.name} is not finished: {steps_done(run)} steps. Beyond, the line of its method is of others, if any."
        for _, run in runs_of(methods)
        if not run.finished
    ]


def reading_notes(runs: Sequence[RunHistory]) -> list[str]:
    """Say what could not be read of the runs, or was read in another way than a reader may think."""
    notes = [f"{run.name}: {note}" for run in runs for note in run.notes]
    unknown = [run.name for run in runs if not run.settings]
    if unknown:
        notes.append(f"No settings are recorded of {', '.join(unknown)}: each is a method of its own.")
    return notes


def _differing(runs: Sequence[RunHistory], name: str, warning: str) -> list[str]:
    """Return a warning where runs differ in a setting, with a run for each value; a recipe leaves out the default."""
    known = [run for run in reversed(runs) if name in run.settings or run.method is not None]
    values = {run.settings.get(name, "default"): run.name for run in known}
    shown = "; ".join(f"{value} in {run}" for value, run in reversed(values.items()))
    return [f"{warning} {name}: {shown}."] if len(values) > 1 else []


def _not_alike(name: str, first: EvalResult, other: EvalResult) -> str | None:
    """Return a warning where two results of one benchmark differ in more than the model."""
    differing = sampling_differences(first.settings, other.settings)
    differing += named_differences(
        {key: (first.benchmarks[name].get(key), other.benchmarks[name].get(key)) for key in _OF_BENCHMARK}
    )
    names = " and ".join(f"{result.name} ({result.folder.name})" for result in (first, other))
    return f"{name}: {names} were not measured alike: {'; '.join(differing)}." if differing else None
