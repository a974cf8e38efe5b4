"""`trl-miner report`: what happened in one run or several, from their folders alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..progress import track
from ..runs.completions import completions_files
from ..runs.files import write_whole
from ..runs.places import check_target
from ..runs.runs_file import is_runs_file
from ..tables import Table, csv_of
from .cells import counted
from .charts import OF_PROMPTS, OF_SCORES, charts_of
from .completions import Completions, read_completions
from .curves import keys_of, training_plans
from .frame import Metrics, read_metrics
from .grouping import group_methods
from .held_out import against_tables, held_out_plans, pass_tables, scored_alike
from .material import ReportInputs, read_material
from .method_tables import (
    METRICS,
    completions_table,
    dose_table,
    methods_table,
    results_table,
    runs_table,
    settings_table,
    training_table,
)
from .notes import comparison_warnings, missing_notes, missing_text_notes, reading_notes, unfinished_notes
from .pages import Plan, Section, html_page, markdown_page
from .prompts import prompt_plans, prompt_tables, read_prompts
from .score_curves import result_plans
from .verdicts import verdicts

_READ_OUT = 3  # runs whose completions are shown as text


def write_report(
    folders: Sequence[str | Path], output: str | Path | None = None, *, smooth: int = 1, quiet: bool = False
) -> Path:
    """Write a report: `index.html`, `report.md`, `tables.csv`, and each picture as PNG and SVG in `figures`.

    Args:
        folders: Training runs, outputs of `trl-miner compare` or their `runs.jsonl`, and result folders of
            `trl-miner eval`.
        output: The folder to write; default: `report` in the folder if it is one, else `runs/report`.
        smooth: Logs of a trailing mean over each run, 1 for none; scores are shown as they are.
        quiet: Show no progress.

    Returns:
        The path of the page.

    Raises:
        FileNotFoundError: A folder is none of these, or lacks a file that it needs.
        ValueError: No folder, a file that cannot be read, or smooth below 1.
    """
    if smooth < 1:
        raise ValueError(f"--smooth must be at least 1: got {smooth}. It counts logs; 1 is no smoothing.")
    material = read_material(folders)
    methods = group_methods(material.runs)
    metrics = read_metrics(methods, [*keys_of(charts_of(material.runs).values()), *METRICS])
    target = default_output(folders) if output is None else Path(output)
    sections = _sections(material, metrics, target, smooth, quiet)
    figures = target / "figures"
    if output is None and len(folders) == 1:
        check_target(figures, target.parent)
    try:
        figures.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--output must be a folder that can be written: {target} cannot ({error}).") from error
    sections = _draw(sections, figures, quiet)
    title, lead = _title(material, metrics)
    write_whole(target / "report.md", markdown_page(title, lead, sections))
    write_whole(target / "index.html", html_page(title, lead, sections))
    tables = [block for section in sections for block in section.blocks if isinstance(block, Table)]
    write_whole(target / "tables.csv", csv_of(tables))
    return target / "index.html"


def default_output(folders: Sequence[str | Path]) -> Path:
    """Return `report` in the only folder or next to the only file, else `runs/report`."""
    if len(folders) != 1:
        return Path("runs/report")
    only = Path(folders[0])
    return (only.parent if is_runs_file(only) else only) / "report"


def _sections(material: ReportInputs, metrics: Metrics, target: Path, smooth: int, quiet: bool) -> list[Section]:
    """Return the parts of the report that hold something; pictures are yet to be drawn."""
    runs, results, methods = material.runs, material.results, metrics.methods
    having = [run for run in runs if completions_files(run.folder)]
    tracked = track(having, "reading completions", unit="runs", quiet=quiet) if having else ()
    completions = {str(run.folder): read_completions(run) for run in tracked}
    ledgers, ledger_notes = read_prompts(runs)
    scored = scored_alike(methods)
    held_out = [] if scored is None else held_out_plans(scored)
    of_problems = [] if scored is None else [*against_tables(scored), *pass_tables(scored)]
    missing = (missing_notes(metrics) if runs else []) + missing_text_notes(runs, completions)
    warnings = comparison_warnings(runs, results) + unfinished_notes(runs, methods)
    sections = [
        Section("Result", _points(verdicts(methods, scored, results))),
        Section("Warnings", _points(warnings), is_warning=True),
        Section("Held-out problems", [*held_out, *of_problems]),
        Section(
            "Evaluation", [*result_plans(results, methods), *([results_table(results, methods)] if results else [])]
        ),
        Section("Training", training_plans(metrics, completions, smooth)),
        Section("Prompts", [*prompt_plans(metrics, ledgers), *prompt_tables(runs, ledgers, target)]),
        Section("Tables", _tables(material, metrics)),
        Section("Completions", _texts(material, completions)),
        Section("Not recorded", _points(missing)),
        Section("Notes", _points([*material.notes, *ledger_notes, *reading_notes(material, completions)])),
    ]
    return [section for section in sections if section.blocks]


def _points(sentences: Sequence[str]) -> list[list[str]]:
    return [list(sentences)] if sentences else []


def _draw(sections: Sequence[Section], figures: Path, quiet: bool) -> list[Section]:
    """Return the sections with their pictures drawn, and delete those of a report that this one replaces."""
    plans = [block for section in sections for block in section.blocks if isinstance(block, Plan)]
    drawn = {plan.name: plan.write(figures) for plan in track(plans, "drawing", unit="figures", quiet=quiet)}
    known = {*charts_of([]), *(chart.name for chart in (*OF_SCORES, *OF_PROMPTS))}
    for name in known - drawn.keys():
        for suffix in (".png", ".svg"):
            (figures / f"{name}{suffix}").unlink(missing_ok=True)
    return [
        replace(section, blocks=[drawn[block.name] if isinstance(block, Plan) else block for block in section.blocks])
        for section in sections
    ]


def _tables(material: ReportInputs, metrics: Metrics) -> list[Table]:
    methods = metrics.methods
    tables = [
        methods_table(methods),
        dose_table(methods),
        settings_table(methods),
        training_table(metrics),
        runs_table(material.runs, metrics) if material.runs else None,
    ]
    return [table for table in tables if table is not None]


def _texts(material: ReportInputs, completions: Mapping[str, Completions]) -> list[Table]:
    """Return a few completions to read of the first runs that have some."""
    having = [run for run in material.runs if str(run.folder) in completions and completions[str(run.folder)].last]
    return [completions_table(run, completions[str(run.folder)]) for run in having[:_READ_OUT]]


def _title(material: ReportInputs, metrics: Metrics) -> tuple[str, str]:
    runs, results, methods, counts = material.runs, material.results, metrics.methods, []
    if runs:
        counts.append(f"{counted(len(runs), 'run')} of {counted(len(methods), 'method')}")
    if results:
        counts.append(f"{counted(len(results), 'result')} of trl-miner eval")
    names = [method.label for method in methods] or [result.name for result in results]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"Report: {shown}", f"{', '.join(counts)}. Written by trl-miner report from the files in their folders."
