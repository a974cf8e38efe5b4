"""`trl-miner report`: what happened in one run or several, from their folders alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..progress import track
from ..runs.files import write_whole
from ..runs.history import RunHistory
from ..runs.runs_file import is_runs_file
from ..tables import Table, csv_of
from .cells import counted
from .charts import OTHERS, charts_of
from .comparison import is_scored, methods_table
from .completions import completions_table
from .drawing import keys_of, training_plans
from .frame import Metrics, read_metrics
from .grouping import group_methods
from .held_out import against_tables, comparisons, held_out_plans, pass_rows, pass_tables, scored_alike
from .material import ReportInputs, read_material
from .method_tables import METRICS, results_table, runs_table, settings_table
from .notes import comparison_warnings, missing_notes, reading_notes, unfinished_notes
from .pages import Block, Plan, Section, html_page, markdown_page
from .prompts import prompts_plan, prompts_table, read_prompts
from .score_curves import result_plans
from .verdicts import verdicts

_READ_OUT = 3  # runs whose completions are shown as text


def write_report(
    folders: Sequence[str | Path], output: str | Path | None = None, *, smooth: int = 1, quiet: bool = False
) -> Path:
    """Write a report: `index.html`, `report.md`, `tables.csv`, and each picture as SVG in `figures`.

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
    sections = _sections(material, metrics, smooth)
    figures = target / "figures"
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


def _sections(material: ReportInputs, metrics: Metrics, smooth: int) -> list[Section]:
    """Return the parts of the report that hold something; pictures are yet to be drawn."""
    runs, results, methods = material.runs, material.results, metrics.methods
    prompts, prompt_notes = read_prompts(runs)
    scored = scored_alike(methods)
    compared = [] if scored is None else comparisons(scored)
    held_out: list[Block] = []
    if scored is not None:
        rows = pass_rows(scored)
        held_out = [*held_out_plans(scored, compared, rows), *against_tables(scored, compared)]
        held_out += pass_tables(scored, rows)
    texts, text_notes = _completions(runs)
    notes = [*material.notes, *prompt_notes, *text_notes, *reading_notes(runs)]
    sections = [
        Section("Result", [verdicts(methods, scored, compared, len(results))]),
        Section("Warnings", [comparison_warnings(runs, results) + unfinished_notes(methods)], is_warning=True),
        Section("Held-out problems", held_out),
        Section("Evaluation", [*result_plans(results), results_table(results)]),
        Section("Training", training_plans(metrics, smooth)),
        Section("Prompts", [prompts_plan(metrics, prompts), prompts_table(runs, prompts)]),
        Section("Tables", [_methods_table(metrics), settings_table(methods), runs_table(metrics)]),
        Section("Completions", texts),
        Section("Not recorded", [missing_notes(metrics)]),
        Section("Notes", [notes]),
    ]
    sections = [replace(section, blocks=[block for block in section.blocks if block]) for section in sections]
    return [section for section in sections if section.blocks]


def _methods_table(metrics: Metrics) -> Table | None:
    """Return the table of `trl-miner compare`; None: no run was scored after training."""
    scored = {method.label: [run for run in method.runs if is_scored(run)] for method in metrics.methods}
    if not any(scored.values()):
        return None
    return methods_table(scored, {method.label: len(method.runs) for method in metrics.methods})


def _completions(runs: Sequence[RunHistory]) -> tuple[list[Table], list[str]]:
    """Return a few completions to read of the first runs that have some, and notes on what could not be read."""
    tables: list[Table] = []
    notes: list[str] = []
    for run in runs:
        if len(tables) == _READ_OUT:
            break
        table, own_notes = completions_table(run)
        notes += own_notes
        tables += [] if table is None else [table]
    return tables, notes


def _draw(sections: Sequence[Section], figures: Path, quiet: bool) -> list[Section]:
    """Return the sections with their pictures drawn, and delete those of a report that this one replaces."""
    plans = [block for section in sections for block in section.blocks if isinstance(block, Plan)]
    drawn = {plan.name: plan.write(figures) for plan in track(plans, "drawing", unit="figures", quiet=quiet)}
    known = {*charts_of([]), *(chart.name for chart in OTHERS)}
    for name in known - drawn.keys():
        (figures / f"{name}.svg").unlink(missing_ok=True)
    return [
        replace(section, blocks=[drawn[block.name] if isinstance(block, Plan) else block for block in section.blocks])
        for section in sections
    ]


def _title(material: ReportInputs, metrics: Metrics) -> tuple[str, str]:
    runs, results, methods, counts = material.runs, material.results, metrics.methods, []
    if runs:
        counts.append(f"{counted(len(runs), 'run')} of {counted(len(methods), 'method')}")
    if results:
        counts.append(f"{counted(len(results), 'result')} of trl-miner eval")
    names = [method.label for method in methods] or [result.name for result in results]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"Report: {shown}", f"{', '.join(counts)}. Written by trl-miner report from the files in their folders."
