"""Scores as the paper's tables show them, in Markdown and LaTeX, beside the paper's own rows."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

MISSING = "-"
_PLUS_MINUS = " ± "
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}


@dataclass(frozen=True)
class Table:
    """Cells and what stands around them.

    Attributes:
        title: What it shows.
        groups: Headings with the headings of their columns below; an empty heading has none above.
        rows: A name and one cell per column.
        notes: Sentences to read with it.
        corner: Heading of the names.
    """

    title: str
    groups: Sequence[tuple[str, Sequence[str]]]
    rows: Sequence[tuple[str, Sequence[str]]]
    notes: Sequence[str] = ()
    corner: str = "Model"


@functools.cache
def load_paper() -> dict[str, Any]:
    """The paper's tables as printed, `paper.json`."""
    return json.loads(resources.files(__package__).joinpath("paper.json").read_text(encoding="utf-8"))


def known_base_model(name: str) -> str | None:
    """The paper's name of a base model.

    Args:
        name: As the paper writes it, or an id on the Hub.

    Returns:
        A key of `load_paper()["main"]`; None: the paper does not train it.
    """
    names = {_plain(known): known for known in load_paper()["main"]}
    return names.get(_plain(name.rpartition("/")[2]))


def paper_rows(base_model: str, benchmarks: Sequence[str]) -> dict[str, dict[str, list[float | None]]]:
    """What the paper reports for a base model and the methods that train it.

    Args:
        base_model: As the paper writes it, or an id on the Hub.
        benchmarks: Titles, such as "AIME2024", or "Avg" for the printed average.

    Returns:
        By method, "Base" first, and title: [Pass@1, Pass@K] in percent, as printed; None: not reported.

    Raises:
        ValueError: The paper does not have this model.
    """
    known = known_base_model(base_model)
    if known is None:
        names = ", ".join(load_paper()["main"])
        raise ValueError(f"The paper's rows exist for {names}: got {base_model}. Name one of them, or none.")
    rows = load_paper()["main"][known]
    return {method: {title: row.get(title, [None, None]) for title in benchmarks} for method, row in rows.items()}


def main_table(scores: Mapping[str, Any], paper: str | None = None) -> Table:
    """Pass@1 and Pass@K of each benchmark and their average.

    Args:
        scores: What `score_folder` returned.
        paper: A base model whose rows of the paper are shown below; None: none.

    Returns:
        The table. A paper's Pass@K is left out where its K is another.
    """
    found = list(scores["benchmarks"].values())
    titles = [one["title"] for one in found]
    own = [[100 * one["pass@k"][str(k)] for k in (1, one["k"])] for one in found]
    rows = [(run_name(scores), _cells(own))]
    notes = ["Percent. P@K is the unbiased estimate from all samples. Avg is the mean of the columns shown."]
    if paper is not None:
        ks = load_paper()["k"]
        for method, row in paper_rows(paper, titles).items():
            cells = [
                [row[one["title"]][0], row[one["title"]][1] if one["k"] == ks.get(one["title"]) else None]
                for one in found
            ]
            rows.append((f"Paper: {method}", _cells(cells)))
        notes += _paper_notes(scores, paper)
    groups = [(one["title"], ("P@1", f"P@{one['k']}")) for one in found] + [("Avg", ("P@1", "P@K"))]
    return Table("Pass@1 and Pass@K", groups, rows, notes)


def scale_tables(scores: Mapping[str, Any], paper: str | None = None) -> list[Table]:
    """Pass@K and Maj@K of each benchmark for growing K.

    Args:
        scores: What `score_folder` returned.
        paper: A base model whose rows of the paper are shown below; None: none.

    Returns:
        Two tables per benchmark.
    """
    tables = []
    for one in scores["benchmarks"].values():
        ks = list(one["maj@k"])
        for metric, name in (("pass@k", "Pass@K"), ("maj@k", "Maj@K")):
            cells = [_own_scale_cell(one[metric][k]) for k in ks]
            rows = [(run_name(scores), cells)]
            printed = _paper_scale(paper, metric, one["title"])
            for method, row in printed.items():
                rows.append((f"Paper: {method}", [_spread(*row[k]) if k in row else MISSING for k in ks]))
            title = f"{name} on {one['title']}, by K"
            tables.append(Table(title, [("", ks)], rows, _scale_notes(metric, scores["repeats"], bool(printed))))
    return tables


def markdown(table: Table) -> str:
    """A table that is also readable as it stands; headings above headings become its first row."""
    grouped = any(heading for heading, _ in table.groups)
    below = [column for _, columns in table.groups for column in columns]
    lines = [[table.corner, *below], *([name, *cells] for name, cells in table.rows)]
    if grouped:
        above = [cell for heading, columns in table.groups for cell in (heading, *[""] * (len(columns) - 1))]
        lines[:1] = [[table.corner, *above], ["", *below]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    shown = []
    for first, *rest in (lines[0], rule, *lines[1:]):
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        shown.append(f"| {' | '.join([first.replace('|', '/').ljust(widths[0]), *cells])} |")
    notes = "".join(f"\n- {note}" for note in table.notes)
    return "\n".join(shown) + "\n" + (f"{notes}\n" if notes else "")


def latex(table: Table) -> str:
    """A `table*` for a document that loads booktabs."""
    width = sum(len(columns) for _, columns in table.groups)
    lines = [r"\begin{table*}", r"\centering", rf"\begin{{tabular}}{{l{'c' * width}}}", r"\toprule"]
    if any(heading for heading, _ in table.groups):
        spans = [rf"\multicolumn{{{len(columns)}}}{{c}}{{{_escape(heading)}}}" for heading, columns in table.groups]
        lines.append(f" & {' & '.join(spans)} \\\\")
        start, rules = 2, []
        for _, columns in table.groups:
            rules.append(rf"\cmidrule(lr){{{start}-{start + len(columns) - 1}}}")
            start += len(columns)
        lines.append(" ".join(rules))
    below = [column for _, columns in table.groups for column in columns]
    lines.append(" & ".join(map(_escape, [table.corner, *below])) + r" \\")
    lines.append(r"\midrule")
    lines += [" & ".join(map(_escape, [name, *cells])) + r" \\" for name, cells in table.rows]
    caption = " ".join([f"{table.title}.", *table.notes])
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{_escape(caption)}}}", r"\end{table*}"]
    return "\n".join(lines) + "\n"


def _paper_notes(scores: Mapping[str, Any], paper: str) -> list[str]:
    """Whose rows these are, where they cannot be compared, and what is known to be wrong in them."""
    printed, known = load_paper(), known_base_model(paper)
    found = list(scores["benchmarks"].values())
    notes = [f"Paper: {printed['source']}, base model {known}."]
    other_k = [
        f"{one['title']} (K={printed['k'][one['title']]})"
        for one in found
        if one["title"] in printed["k"] and printed["k"][one["title"]] != one["k"]
    ]
    if other_k:
        notes.append(f"The paper's P@K is left out where its K is another: {', '.join(other_k)}.")
    settings = scores["settings"]
    others = [
        f"{name} {value}, here {settings[name]}"
        for name, value in printed["settings"].items()
        if settings.get(name, value) != value
    ]
    if others:
        notes.append(f"The paper samples otherwise: {'; '.join(others)}.")
    titles = [one["title"] for one in found]
    for slip in printed["slips"]:
        if slip["base_model"] == known and (slip["column"] in titles or slip["column"] == "Avg"):
            place = f"{slip['row']}, {slip['column']} {slip['metric']}"
            notes.append(f"The paper prints {slip['printed']:.2f} for {place}, but {slip['is']}.")
    return notes


def _scale_notes(metric: str, repeats: int, has_paper: bool) -> list[str]:
    if metric == "pass@k":
        notes = ["The run's Pass@K is the unbiased estimate from all samples: it has no draws, hence no ±."]
    else:
        notes = [
            f"Mean over {repeats} draws without replacement ± the deviation of a problem over the draws, averaged "
            f"over problems, which is the paper's ±. The deviation of the score itself is in scores.json."
        ]
    if has_paper and metric == "pass@k":
        notes.append(
            "The paper's are means of 10 draws ± the deviation of a problem over the draws, averaged over problems. "
            "At K=128 they lie below its main table's P@K, as even those draws do not hold all samples."
        )
    return notes


def _paper_scale(paper: str | None, metric: str, title: str) -> dict[str, dict[str, list[float]]]:
    known = known_base_model(paper) if paper is not None else None
    section = "pass_at_k" if metric == "pass@k" else "maj_at_k"
    return load_paper()[section].get(known, {}).get(title, {})


def _own_scale_cell(found: Any) -> str:
    if isinstance(found, Mapping):
        return _spread(100 * found["mean"], 100 * found["std_of_problems"])
    return percent(100 * found)


def _cells(columns: Sequence[Sequence[float | None]]) -> list[str]:
    """Of each benchmark, then their mean."""
    shown = [percent(value) for column in columns for value in column]
    for metric in zip(*columns, strict=True):
        known = [value for value in metric if value is not None]
        shown.append(percent(sum(known) / len(known) if len(known) == len(metric) else None))
    return shown


def percent(value: float | None) -> str:
    """A number with two digits, or the sign for one that is missing."""
    return MISSING if value is None else f"{value:.2f}"


def _spread(mean: float, deviation: float) -> str:
    return f"{mean:.2f}{_PLUS_MINUS}{deviation:.2f}"


def run_name(scores: Mapping[str, Any]) -> str:
    """A Hub id, or the end of a path: the folders above it are nobody's business."""
    return "/".join(str(scores["settings"].get("model", "this run")).rstrip("/").split("/")[-2:])


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
