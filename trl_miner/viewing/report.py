"""`trl-miner report`: what happened in one run or several, from their folders alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..progress import track
from ..runs.completions import completions_files
from ..runs.files import write_whole
from ..runs.history import RunHistory
from ..runs.runs_file import is_runs_file
from ..tables import Table
from ..text import one_line
from . import lines
from .budgets import budgets_table, training_table
from .charts import COMPLETIONS, HELD_OUT, Chart, charts_of
from .completions import Completions, completions_history, read_completions
from .curves import draw_chart, has_chart
from .grouping import Method, group_methods
from .held_out_report import PICTURES, Plan, held_out_part
from .material import EvalResult, Material, read_material
from .pages import Picture, Section, html_page, markdown_page
from .pass_curves import (
    BANDS,
    CAPTIONS,
    TITLES,
    draw_levels,
    draw_maj_at_k,
    draw_pass_at_k,
    group_results,
    lacks_intervals,
)
from .summaries import (
    ablation_tables,
    compared_table,
    comparison_warnings,
    missing_notes,
    results_table,
    runs_table,
    sensitivity_tables,
    unfinished_notes,
)

DEFAULT_OUTPUT = "runs/report"
_RESULT_PICTURES = {"pass_at_k": draw_pass_at_k, "maj_at_k": draw_maj_at_k, "levels": draw_levels}
_READ_OUT = 3  # runs whose completions are shown as text


@dataclass
class _Read:
    """What a report is made of.

    Attributes:
        material: Runs and results.
        methods: Of the runs.
        completions: By run folder, of the runs that have some.
        smooth: Logs of a trailing mean over the curves of training.
    """

    material: Material
    methods: Sequence[Method]
    smooth: int
    completions: Mapping[str, Completions] = field(default_factory=dict)

    @property
    def runs(self) -> Sequence[RunHistory]:
        return self.material.runs

    @property
    def results(self) -> Sequence[EvalResult]:
        return self.material.results


def write_report(
    folders: Sequence[str | Path], output: str | Path | None = None, *, smooth: int = 1, quiet: bool = False
) -> Path:
    """Write a report: `index.html`, `report.md`, and each picture as PNG and SVG in `figures`.

    Args:
        folders: Training runs, outputs of `trl-miner compare` or their `runs.jsonl`, and result folders of
            `trl-miner eval`.
        output: Where to; default: `report` in the folder if it is one, else `runs/report`.
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
    read = _read(folders, smooth, quiet)
    target = default_output(folders) if output is None else Path(output)
    figures = target / "figures"
    try:
        figures.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--output must be a folder that can be written: {target} cannot ({error}).") from error
    training, evaluation = _training_plans(read), _result_plans(read)
    problem_tables, problems = held_out_part(read.methods)
    pictures = {
        plan.name: _picture(plan, figures)
        for plan in track([*problems, *training, *evaluation], "drawing", unit="figures", quiet=quiet)
    }
    known = {*charts_of([]), *TITLES, *PICTURES}
    for name in known - pictures.keys():
        for suffix in (".png", ".svg"):  # of a report that this one replaces
            (figures / f"{name}{suffix}").unlink(missing_ok=True)
    drawn = [[pictures[plan.name] for plan in plans] for plans in (problems, training, evaluation)]
    sections = _sections(read, [*problem_tables, *drawn[0]], drawn[1], drawn[2])
    title, lead = _title(read)
    write_whole(target / "report.md", markdown_page(title, lead, sections))
    write_whole(target / "index.html", html_page(title, lead, sections))
    return target / "index.html"


def default_output(folders: Sequence[str | Path]) -> Path:
    """Where a report goes when nothing is said.

    Args:
        folders: Those that it is of.

    Returns:
        `report` in the only folder, or beside the only file, or `runs/report`.
    """
    if len(folders) != 1:
        return Path(DEFAULT_OUTPUT)
    only = Path(folders[0])
    return (only.parent if is_runs_file(only) else only) / "report"


def _read(folders: Sequence[str | Path], smooth: int, quiet: bool) -> _Read:
    material = read_material(folders)
    having = [run for run in material.runs if completions_files(run.folder)]
    found = {
        str(run.folder): read_completions(run)
        for run in (track(having, "reading completions", unit="runs", quiet=quiet) if having else ())
    }
    return _Read(material, group_methods(material.runs), smooth, found)


def _training_plans(read: _Read) -> list[Plan]:
    """The charts of which at least one run has something."""
    plans = []
    for name, chart in charts_of(read.runs).items():
        if any(has_chart(chart, run) for run in read.runs):
            plans.append(_plan(chart, read.runs, read, smooth=1 if name == HELD_OUT else read.smooth))
    read_out = [
        completions_history(run, read.completions[str(run.folder)])
        for run in read.runs
        if str(run.folder) in read.completions
    ]
    if any(run.logs for run in read_out):
        plans.append(_plan(COMPLETIONS, read_out, read, smooth=1))
    return plans


def _plan(chart: Chart, runs: Sequence[RunHistory], read: _Read, *, smooth: int) -> Plan:
    caption = [chart.caption]
    if any(len(method.runs) > 1 for method in read.methods):
        caption.append("Line: mean over the runs of a method.")
        if len(read.methods) <= lines.MOST_BANDS:
            caption.append("Band: from the smallest to the largest of them.")
        else:
            caption.append(f"Bands are left out above {lines.MOST_BANDS} methods: give fewer runs to see them.")
    if smooth > 1:
        caption.append(f"Trailing mean over {smooth} logs of each run.")
    return Plan(chart.name, chart.title, " ".join(caption), lambda: draw_chart(chart, runs, smooth=smooth))


def _result_plans(read: _Read) -> list[Plan]:
    if not read.results:
        return []
    series = group_results(read.results, read.methods)
    plans = []
    for name, draw in _RESULT_PICTURES.items():
        if name == "levels" and not any(one.get("levels") for r in read.results for one in r.benchmarks.values()):
            continue
        caption = [CAPTIONS[name], f"{BANDS[name]}."]
        if any(len(own) > 1 for _, own in series):
            caption.append("Where a line is the mean of several results: from the smallest to the largest of them.")
        if len(series) > lines.MOST_BANDS and name != "levels":
            caption.append(f"Bands are left out above {lines.MOST_BANDS} lines.")
        plans.append(
            Plan(
                name,
                TITLES[name],
                " ".join(caption),
                lambda draw=draw: draw(read.results, methods=read.methods),  # type: ignore[misc]
            )
        )
    return plans


def _picture(plan: Plan, figures: Path) -> Picture:
    figure = plan.draw()
    svg = lines.as_svg(figure, plan.name)
    figure.set_layout_engine("none")  # its places are found, which takes longer than the drawing
    write_whole(figures / f"{plan.name}.svg", svg)
    write_whole(figures / f"{plan.name}.png", [lines.as_png(figure)])
    return Picture(plan.name, plan.title, plan.caption, svg)


def _sections(
    read: _Read,
    problems: Sequence[Table | Picture],
    training: Sequence[Picture],
    evaluation: Sequence[Picture],
) -> list[Section]:
    sections = []
    warnings = comparison_warnings(read.runs, read.results) + unfinished_notes(read.runs, read.methods)
    if warnings:
        sections.append(Section("Warnings", [warnings], is_warning=True))
    compared = compared_table(read.methods)
    tables: list[Table] = [] if compared is None else [compared]
    tables += [*ablation_tables(read.methods, read.results), *sensitivity_tables(read.methods)]
    tables += [table for find in (budgets_table, training_table) if (table := find(read.methods)) is not None]
    tables += [runs_table(read.runs)] if read.runs else []
    if tables:
        sections.append(Section("Tables", tables))
    if problems:
        sections.append(Section("Held-out problems", problems))
    if training:
        sections.append(Section("Training", training))
    if read.results:
        sections.append(Section("Evaluation", [results_table(read.results, read.methods), *evaluation]))
    if texts := _texts(read):
        sections.append(Section("Completions", texts))
    lists = (("Not recorded", _missing(read)), ("Notes", _notes(read)))
    sections += [Section(title, [notes]) for title, notes in lists if notes]
    return sections


def _texts(read: _Read) -> list[Table]:
    """A few completions to read, where there are few runs."""
    having = [(run, read.completions[str(run.folder)]) for run in read.runs if str(run.folder) in read.completions]
    tables = []
    for run, found in [(run, found) for run, found in having if found.last][:_READ_OUT]:
        reward = found.reward or "reward"
        rows = [
            [
                str(number),
                one_line(row["prompt"], 300),
                one_line(row["completion"], 600),
                "unscorable" if row.get(reward) is None else f"{row[reward]:g}",
            ]
            for number, row in enumerate(found.last, 1)
        ]
        title = f"Some rollouts of step {found.last[0]['step']} of {run.name}"
        tables.append(Table(title, ["", "Prompt", "Completion", reward], rows, is_text=True))
    return tables


def _missing(read: _Read) -> list[str]:
    notes = missing_notes(read.methods) if read.runs else []
    without = [run.name for run in read.runs if str(run.folder) not in read.completions]
    if without:
        whose = "" if len(without) == len(read.runs) else f" by {len(without)} of {len(read.runs)} runs"
        notes.append(f"{COMPLETIONS.title}: not recorded{whose}. To record it: {COMPLETIONS.recorded_by}.")
    if read.runs and not any((run.folder / "credit").is_dir() for run in read.runs):
        notes.append(
            "Credit of each token: not recorded. To record it: log_token_credit: true. To see it: trl-miner inspect "
            "RUN."
        )
    return notes


def _notes(read: _Read) -> list[str]:
    notes = list(read.material.notes)
    notes += [f"{run.name}: {note}" for run in read.runs for note in run.notes]
    for run in read.runs:
        found = read.completions.get(str(run.folder))
        notes += [f"{run.name}: {note}" for note in found.notes] if found else []
    notes += [
        f"{result.name} ({result.folder.name}) was scored before Pass@K had intervals: its line has no band. Score it "
        f"again: trl-miner score {result.folder}"
        for result in lacks_intervals(read.results)
    ]
    unknown = [run.name for run in read.runs if not run.settings]
    if unknown:
        notes.append(f"No settings are recorded of {', '.join(unknown)}: each is a method of its own.")
    return notes


def _title(read: _Read) -> tuple[str, str]:
    counted = []
    if read.runs:
        counted.append(f"{_count(len(read.runs), 'run')} of {_count(len(read.methods), 'method')}")
    if read.results:
        counted.append(f"{_count(len(read.results), 'result')} of trl-miner eval")
    names = [method.label for method in read.methods] or [result.name for result in read.results]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"Report: {shown}", f"{', '.join(counted)}. Written by trl-miner report from the files in their folders."


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
