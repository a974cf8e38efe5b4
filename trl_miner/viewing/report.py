"""`trl-miner report`: what happened in one run or several, from their folders alone."""

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..progress import track
from ..runs.completions import completions_files
from ..runs.files import write_whole
from ..runs.places import check_target
from ..runs.runs_file import is_runs_file
from ..tables import Table
from . import held_out_curves
from .charts import charts_of
from .completions import Completions, read_completions
from .grouping import Method, group_methods
from .held_out_tables import against_tables, pass_tables, scored_alike
from .material import Material, read_material
from .method_tables import (
    ablation_tables,
    dose_table,
    methods_table,
    sensitivity_tables,
    settings_table,
    training_table,
)
from .notes import comparison_warnings, missing_notes, missing_text_notes, reading_notes, unfinished_notes
from .pages import Picture, Plan, Section, html_page, markdown_page
from .plans import SCORES, result_plans, training_plans
from .prompt_tables import prompt_tables
from .prompts import PICTURES, Prompts, prompt_plans, read_prompts
from .run_tables import completions_table, results_table, runs_table
from .spreads import counted
from .verdicts import verdicts

_READ_OUT = 3  # runs whose completions are shown as text


@dataclass(frozen=True)
class _Content:
    """The content of a report: completions and prompts by run folder, pictures by section."""

    material: Material
    methods: Sequence[Method]
    completions: Mapping[str, Completions]
    prompts: Mapping[str, Prompts]
    answer: Sequence[str]
    problem_tables: Sequence[Table]
    plans: Mapping[str, Sequence[Plan]]


def write_report(
    folders: Sequence[str | Path], output: str | Path | None = None, *, smooth: int = 1, quiet: bool = False
) -> Path:
    """Write a report: `index.html`, `report.md`, and each picture as PNG and SVG in `figures`.

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
    with _left_out_of_collections():  # a long log is 200,000 objects and more
        return _write(_read(material, smooth, quiet), folders, output, quiet)


@contextlib.contextmanager
def _left_out_of_collections() -> Iterator[None]:
    """Keep the collector from going through the objects that are there, again and again.

    A caller that has frozen objects keeps them frozen: Python can only unfreeze all at once.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _write(content: _Content, folders: Sequence[str | Path], output: str | Path | None, quiet: bool) -> Path:
    target = default_output(folders) if output is None else Path(output)
    figures = target / "figures"
    if output is None and len(folders) == 1:
        check_target(figures, target.parent)
    try:
        figures.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--output must be a folder that can be written: {target} cannot ({error}).") from error
    plans = [plan for several in content.plans.values() for plan in several]
    written = [plan.write(figures) for plan in track(plans, "drawing", unit="figures", quiet=quiet)]
    pictures = {picture.name: picture for picture in written}
    _delete_others(figures, pictures)
    sections = _sections(content, pictures, target)
    title, lead = _title(content)
    write_whole(target / "report.md", markdown_page(title, lead, sections))
    write_whole(target / "index.html", html_page(title, lead, sections))
    return target / "index.html"


def default_output(folders: Sequence[str | Path]) -> Path:
    """Return `report` in the only folder or next to the only file, else `runs/report`."""
    if len(folders) != 1:
        return Path("runs/report")
    only = Path(folders[0])
    return (only.parent if is_runs_file(only) else only) / "report"


def _read(material: Material, smooth: int, quiet: bool) -> _Content:
    runs, methods = material.runs, group_methods(material.runs)
    having = [run for run in runs if completions_files(run.folder)]
    tracked = track(having, "reading completions", unit="runs", quiet=quiet) if having else ()
    completions = {str(run.folder): read_completions(run) for run in tracked}
    prompts, notes = read_prompts(runs)
    material = replace(material, notes=[*material.notes, *notes])
    scored = scored_alike(methods)
    plans = {
        "Held-out problems": [] if scored is None else held_out_curves.held_out_plans(scored),
        "Training": training_plans(runs, methods, completions, smooth),
        "Prompts": prompt_plans(methods, prompts),
        "Evaluation": result_plans(material.results, methods),
    }
    problem_tables = [] if scored is None else [*against_tables(scored), *pass_tables(scored)]
    answer = verdicts(methods, scored, material.results)
    return _Content(material, methods, completions, prompts, answer, problem_tables, plans)


def _delete_others(figures: Path, pictures: Mapping[str, Picture]) -> None:
    """Delete the pictures of a report that this one replaces."""
    known = {*charts_of([]), *SCORES, *PICTURES, held_out_curves.BY_K, held_out_curves.AGAINST}
    for name in known - pictures.keys():
        for suffix in (".png", ".svg"):
            (figures / f"{name}{suffix}").unlink(missing_ok=True)


def _sections(content: _Content, pictures: Mapping[str, Picture], target: Path) -> list[Section]:
    material, methods, completions = content.material, content.methods, content.completions
    runs, results = material.runs, material.results
    drawn = {title: [pictures[plan.name] for plan in plans] for title, plans in content.plans.items()}
    warnings = comparison_warnings(runs, results) + unfinished_notes(runs, methods)
    missing = (missing_notes(methods) if runs else []) + missing_text_notes(runs, completions)
    notes = reading_notes(material, completions)
    sections = [
        Section("Result", [list(content.answer)] if content.answer else []),
        Section("Warnings", [warnings] if warnings else [], is_warning=True),
        Section("Held-out problems", [*drawn["Held-out problems"], *content.problem_tables]),
        Section("Evaluation", [*drawn["Evaluation"], *([results_table(results, methods)] if results else [])]),
        Section("Training", drawn["Training"]),
        Section("Prompts", [*drawn["Prompts"], *prompt_tables(runs, content.prompts, target)]),
        Section("Tables", _tables(material, methods)),
        Section("Completions", _texts(material, completions)),
        Section("Not recorded", [missing] if missing else []),
        Section("Notes", [notes] if notes else []),
    ]
    return [section for section in sections if section.blocks]


def _tables(material: Material, methods: Sequence[Method]) -> list[Table]:
    tables = [
        methods_table(methods),
        dose_table(methods),
        settings_table(methods),
        *ablation_tables(methods, material.results),
        *sensitivity_tables(methods),
        training_table(methods),
        runs_table(material.runs) if material.runs else None,
    ]
    return [table for table in tables if table is not None]


def _texts(material: Material, completions: Mapping[str, Completions]) -> list[Table]:
    """Return a few completions to read of the first runs that have some."""
    having = [run for run in material.runs if str(run.folder) in completions and completions[str(run.folder)].last]
    return [completions_table(run, completions[str(run.folder)]) for run in having[:_READ_OUT]]


def _title(content: _Content) -> tuple[str, str]:
    runs, results, counts = content.material.runs, content.material.results, []
    if runs:
        counts.append(f"{counted(len(runs), 'run')} of {counted(len(content.methods), 'method')}")
    if results:
        counts.append(f"{counted(len(results), 'result')} of trl-miner eval")
    names = [method.label for method in content.methods] or [result.name for result in results]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"Report: {shown}", f"{', '.join(counts)}. Written by trl-miner report from the files in their folders."
