"""The report of runs: one picture, one table, and the facts, for a terminal and as a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .facts import contradictions, facts
from .plots import ENDS, SHARES, draw
from .runs import RunLog, read_run

if TYPE_CHECKING:
    from pandas import DataFrame

PAGE, PICTURE = "index.html", "training.png"


@dataclass(frozen=True)
class Report:
    """What was read of runs.

    Attributes:
        runs: As given, each once.
        table: A column per run; texts.
        told: By the run's folder its facts, and what `contradictions` returns.
    """

    runs: list[RunLog]
    table: "DataFrame"
    told: dict[str, tuple[list[str], str, "DataFrame | None"]]

    def text(self) -> str:
        """Return the table and the facts for a terminal."""
        lines = [self.table.to_string(line_width=120)]
        for name, (found, contradicted, examples) in self.told.items():
            lines += ["", f"{name}:", *(f"- {fact}" for fact in (*found, contradicted) if fact)]
            if examples is not None and len(examples):
                lines += ["", examples.to_string(index=False)]
        return "\n".join(lines)


def make_report(folders: Sequence[str | Path], correct: str | None = None) -> Report:
    """Read runs, and grade their logged completions again where reference answers were logged.

    Args:
        folders: The `output_dir` of each run.
        correct: As `read_run` has it.

    Raises:
        ValueError: As `read_run`.
    """
    import pandas as pd

    read = [read_run(folder, correct) for folder in folders]
    runs = [*{run.folder.resolve(): run for run in read}.values()]
    table = pd.DataFrame({str(run.folder): _cells(run) for run in runs})
    told = {str(run.folder): (facts(run), *contradictions(run)) for run in runs}
    return Report(runs, table.fillna(""), told)


def _cells(run: RunLog) -> dict[str, str]:
    """Return the cells of a run by the title of the row."""
    cells = {"Method": run.method, "Steps": str(run.log.index.max())}
    if run.record:
        cells["Seed"] = str(run.record.seed)
    for metric, title in ENDS.items():
        if metric in run.log:
            values = run.log[metric].dropna()
            cells[f"{title}, first to last"] = f"{values.iloc[0]:.3f} to {values.iloc[-1]:.3f}"
    for metric, title in SHARES.items():
        if metric in run.log:
            cells[title] = f"{run.mean(metric):.1%}"
    return cells


def write_report(report: Report, output: str | Path) -> list[Path]:
    """Write the page and the picture into a folder, which is made, and return their paths."""
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    page, picture = folder / PAGE, folder / PICTURE
    draw(report.runs, picture)
    page.write_text(render("report.jinja", report=report, picture=PICTURE), "utf-8")
    return [page, picture]


def render(template: str, **values: Any) -> str:
    """Return a template of this folder, filled; texts are escaped."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("trl_miner.report", "."), autoescape=True, trim_blocks=True
    )
    return environment.get_template(template).render(**values)


def inside(folder: Path, name: str) -> Path:
    """Return the path of what is to be written in a run's folder.

    Raises:
        ValueError: It is a link that leads out of the folder.
    """
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path} is a link that leads out of {folder}. Give another --output.")
    return path
