"""`trl-miner report`: what the folders of runs and results hold, as a page, Markdown and
pictures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..common.progress import track
from ..evaluation.paired import sampling_differences
from ..runs.files import write_whole
from ..runs.history import RunHistory
from ..runs.token_credit import Credit
from .charts import charts_of
from .credit import credit_section
from .curves import keys_of, result_pictures, training_pictures
from .frame import Metrics, read_metrics
from .held_out import against_tables, comparisons, pass_tables, scored_alike, verdicts
from .inputs import EvalResult, Inputs, Method, group_methods, read_inputs, runs_of
from .pages import Picture, Section, html_page, markdown_page
from .rollout_report import rollout_sections
from .tables import counted, methods_table, settings_table

_OF_SCORES = """
    temperature max_completion_length held_out score_samples dataset_name reward_funcs
    math_accept_unboxed correct_reward_func correct_threshold
    """.split()
_SCORES = (
    "The numbers: scores.md in each folder. To compare two, problem by problem: trl-miner score"
    " FIRST SECOND."
)
_OF_BENCHMARK = ("problems", "samples", "fingerprint", "grader")


def write_report(
    folders: Sequence[str | Path],
    output: str | Path | None = None,
    *,
    correct: str | None = None,
    threshold: float | None = None,
    refresh: int | None = None,
    credit: Credit | None = None,
    quiet: bool = False,
) -> Path:
    """Write a report: `index.html`, `report.md`, and each picture as SVG in `figures`.

    Args:
        folders: Training runs, outputs of `trl-miner compare` or their `runs.jsonl`, and result
            folders of `trl-miner eval`; runs of plain TRL, and rollouts of others: see
            `rollouts`.
        output: The folder to write; default: `report` in the folder if it is one, else
            `runs/report`.
        correct: Of rollouts, the reward function that says what is right, or several joined by
            "+". None: found by names and values.
        threshold: Its reward from which on a rollout is right. None: 1.
        refresh: Seconds after which a browser loads the page anew. None: it stays as it is.
        credit: What MINER would credit in their rollouts, see `scored_rollouts`.
        quiet: Show no progress.

    Returns:
        The path of the page.

    Raises:
        FileNotFoundError: A folder is none of these, or lacks a file that it needs.
        ValueError: No folder, or a file that cannot be read.
    """
    inputs = read_inputs(folders, correct=correct, threshold=threshold, quiet=quiet)
    methods = group_methods(inputs.runs)
    metrics = read_metrics(methods, keys_of(charts_of(inputs.runs).values()))
    only = Path(folders[0])
    beside = (only if only.is_dir() else only.parent) if len(folders) == 1 else Path("runs")
    target = beside / "report" if output is None else Path(output)
    figures = target / "figures"
    try:
        figures.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--output must be a folder that can be written: {target} cannot ({error})."
        ) from error
    sections = _sections(inputs, metrics, credit)
    pictures = [
        block for section in sections for block in section.blocks if isinstance(block, Picture)
    ]
    for picture in track(pictures, "drawing", unit="figures", quiet=quiet):
        write_whole(figures / f"{picture.name}.svg", picture.svg)
    title, lead = _title(inputs, metrics)
    write_whole(target / "report.md", markdown_page(title, lead, sections))
    write_whole(target / "index.html", html_page(title, lead, sections, refresh=refresh))
    return target / "index.html"


def _sections(inputs: Inputs, metrics: Metrics, credit: Credit | None) -> list[Section]:
    """Return the parts of the report that hold something."""
    results, methods = inputs.results, metrics.methods
    scored = scored_alike(methods)
    compared = comparisons(scored)
    held_out = [*against_tables(scored, compared), *pass_tables(scored)] if scored else []
    finished = {
        m.label: [run if run.finished and run.scores else None for run in m.runs] for m in methods
    }
    alone = len(inputs.runs) == 1
    of_rollouts = [
        section
        for run in inputs.runs
        for section in rollout_sections(
            run, inputs.outcomes.get(run.folder), "" if alone else f"{run.name}: "
        )
    ]
    tells = any(block for section in of_rollouts for block in section.blocks)
    of_methods = methods_table(finished) if any(any(own) for own in finished.values()) else None
    sections = [
        # a run that was not scored has nothing to compare
        Section(
            "Result",
            [] if tells and alone and not scored else [verdicts(methods, scored, compared)],
        ),
        *of_rollouts,
        *([credit_section(credit)] if credit else []),
        Section(
            "Warnings", [comparison_warnings(inputs) + unfinished_notes(methods)], is_warning=True
        ),
        Section("Held-out problems", held_out),
        Section("Evaluation", [*result_pictures(results), [_SCORES] if results else []]),
        Section("Training", training_pictures(metrics)),
        Section("Tables", [of_methods, settings_table(methods)]),
        Section("Notes", [[*inputs.notes]]),
    ]
    sections = [
        replace(section, blocks=[block for block in section.blocks if block])
        for section in sections
    ]
    return [section for section in sections if section.blocks]


def _title(inputs: Inputs, metrics: Metrics) -> tuple[str, str]:
    methods, counts = metrics.methods, []
    if inputs.runs:
        counts.append(f"{counted(len(inputs.runs), 'run')} of {counted(len(methods), 'method')}")
    if inputs.results:
        counts.append(f"{counted(len(inputs.results), 'result')} of trl-miner eval")
    names = [method.label for method in methods] or [result.name for result in inputs.results]
    shown = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
    return (
        f"Report: {shown}",
        f"{', '.join(counts)}. Written by trl-miner report from the files in their folders.",
    )


# What a reader must know


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
        f"{run.name} is not finished: {run.steps} of {run.planned or 'unknown'} steps. Beyond, the"
        " line of its method is of others, if any."
        for _, run in runs_of(methods)
        if not run.finished
    ]


def _differing(runs: Sequence[RunHistory], name: str, warning: str) -> list[str]:
    """Return a warning where runs differ in a setting, with a run for each value; a recipe leaves
    out the default."""
    known = [run for run in reversed(runs) if name in run.settings or run.method is not None]
    values = {run.settings.get(name, "default"): run.name for run in known}
    shown = "; ".join(f"{value} in {run}" for value, run in reversed(values.items()))
    return [f"{warning} {name}: {shown}."] if len(values) > 1 else []


def _not_alike(name: str, first: EvalResult, other: EvalResult) -> str | None:
    """Return a warning where two results of one benchmark differ in more than the model."""
    facts = [
        {
            **result.settings,
            **{f"its {key}": result.benchmarks[name].get(key) for key in _OF_BENCHMARK},
        }
        for result in (first, other)
    ]
    differing = sampling_differences(*facts)
    names = " and ".join(f"{result.name} ({result.folder.name})" for result in (first, other))
    return (
        f"{name}: {names} were not measured alike: {'; '.join(differing)}." if differing else None
    )
