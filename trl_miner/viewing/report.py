"""`trl-miner report`: what the folders of runs and results hold, as a page, Markdown, pictures and one CSV."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..progress import track
from ..runs.files import write_whole
from ..runs.runs_file import is_runs_file
from ..tables import Table, csv_of
from .charts import charts_of
from .curves import keys_of, result_pictures, training_pictures
from .frame import Metrics, read_metrics
from .held_out import against_tables, comparisons, held_out_pictures, pass_tables, scored_alike, verdicts
from .inputs import Inputs, group_methods, read_inputs
from .notes import comparison_warnings, reading_notes, unfinished_notes
from .pages import Block, Picture, Section, html_page, markdown_page
from .prompts import prompts_picture, prompts_table, read_prompts
from .tables import METRICS, counted, is_scored, methods_table, runs_table, settings_table


def write_report(folders: Sequence[str | Path], output: str | Path | None = None, *, quiet: bool = False) -> Path:
    """Write a report: `index.html`, `report.md`, `tables.csv`, and each picture as SVG in `figures`.

    Args:
        folders: Training runs, outputs of `trl-miner compare` or their `runs.jsonl`, and result folders of
            `trl-miner eval`.
        output: The folder to write; default: `report` in the folder if it is one, else `runs/report`.
        quiet: Show no progress.

    Returns:
        The path of the page.

    Raises:
        FileNotFoundError: A folder is none of these, or lacks a file that it needs.
        ValueError: No folder, or a file that cannot be read.
    """
    inputs = read_inputs(folders)
    methods = group_methods(inputs.runs)
    metrics = read_metrics(methods, [*keys_of(charts_of(inputs.runs).values()), *METRICS])
    only = Path(folders[0])
    beside = (only.parent if is_runs_file(only) else only) if len(folders) == 1 else Path("runs")
    target = beside / "report" if output is None else Path(output)
    figures = target / "figures"
    try:
        figures.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--output must be a folder that can be written: {target} cannot ({error}).") from error
    sections = _sections(inputs, metrics)
    blocks = [block for section in sections for block in section.blocks]
    pictures = [block for block in blocks if isinstance(block, Picture)]
    for picture in track(pictures, "drawing", unit="figures", quiet=quiet):
        write_whole(figures / f"{picture.name}.svg", picture.svg)
    title, lead = _title(inputs, metrics)
    write_whole(target / "report.md", markdown_page(title, lead, sections))
    write_whole(target / "index.html", html_page(title, lead, sections))
    write_whole(target / "tables.csv", csv_of([block for block in blocks if isinstance(block, Table)]))
    return target / "index.html"


def _sections(inputs: Inputs, metrics: Metrics) -> list[Section]:
    """Return the parts of the report that hold something."""
    runs, results, methods = inputs.runs, inputs.results, metrics.methods
    prompts, prompt_notes = read_prompts(runs)
    scored = scored_alike(methods)
    compared = comparisons(scored)
    held_out: list[Block] = []
    if scored is not None:
        held_out += [*held_out_pictures(scored, compared), *against_tables(scored, compared), *pass_tables(scored)]
    finished = {method.label: [run if is_scored(run) else None for run in method.runs] for method in methods}
    of_methods = methods_table(finished) if any(any(own) for own in finished.values()) else None
    sections = [
        Section("Result", [verdicts(methods, scored, compared, len(results))]),
        Section("Warnings", [comparison_warnings(inputs) + unfinished_notes(methods)], is_warning=True),
        Section("Held-out problems", held_out),
        Section(
            "Evaluation", [*result_pictures(results), ["The numbers: scores.md in each folder."] if results else []]
        ),
        Section("Training", training_pictures(metrics)),
        Section("Prompts", [prompts_picture(metrics, prompts), prompts_table(runs, prompts)]),
        Section("Tables", [of_methods, settings_table(methods), runs_table(metrics)]),
        Section("Notes", [[*inputs.notes, *prompt_notes, *reading_notes(runs)]]),
    ]
    sections = [replace(section, blocks=[block for block in section.blocks if block]) for section in sections]
    return [section for section in sections if section.blocks]


def _title(inputs: Inputs, metrics: Metrics) -> tuple[str, str]:
    methods, counts = metrics.methods, []
    if inputs.runs:
        counts.append(f"{counted(len(inputs.runs), 'run')} of {counted(len(methods), 'method')}")
    if inputs.results:
        counts.append(f"{counted(len(inputs.results), 'result')} of trl-miner eval")
    names = [method.label for method in methods] or [result.name for result in inputs.results]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"Report: {shown}", f"{', '.join(counts)}. Written by trl-miner report from the files in their folders."
