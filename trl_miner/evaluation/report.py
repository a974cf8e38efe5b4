"""The scores of a result folder as a page and as LaTeX."""

from collections.abc import Callable, Mapping
from typing import Any

from .tables import Table, latex, main_table, markdown, percent, run_name, scale_tables


def report_markdown(scores: Mapping[str, Any], paper: str | None = None) -> str:
    """Everything a reader wants of `score_folder`: the tables, intervals, levels, lengths and warnings."""
    parts = [f"# Scores of {run_name(scores)}\n"]
    if scores["warnings"]:
        parts.append("".join(f"- Warning: {warning}\n" for warning in scores["warnings"]))
    parts += [markdown(main_table(scores, paper)), "## By benchmark\n", markdown(_detail_table(scores))]
    if any(one["levels"] for one in scores["benchmarks"].values()):
        parts += ["## By level\n", *(markdown(table) for table in _level_tables(scores))]
    for table in scale_tables(scores, paper):
        parts += [f"## {table.title}\n", markdown(table)]
    return "\n".join(parts)


def report_latex(scores: Mapping[str, Any], paper: str | None = None) -> str:
    """The main table and the tables by K, one after another."""
    tables = [main_table(scores, paper), *scale_tables(scores, paper)]
    return "% needs \\usepackage{booktabs}\n" + "\n".join(map(latex, tables))


def _detail_table(scores: Mapping[str, Any]) -> Table:
    """One column per benchmark: more fit on a screen that way round."""
    found = list(scores["benchmarks"].values())

    def interval(name: str) -> Callable[[Mapping[str, Any]], str]:
        def show(one: Mapping[str, Any]) -> str:
            measured = one["intervals"][name]
            return "{:.2f} [{:.2f}, {:.2f}]".format(*(100 * measured[part] for part in ("mean", "low", "high")))

        return show

    shown: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("Problems", lambda one: str(one["problems"])),
        ("Samples of each", lambda one: str(one["samples"])),
        ("K", lambda one: str(one["k"])),
        ("Pass@1", interval("pass@1")),
        ("Pass@K", interval("pass@k")),
        ("Maj@K", interval("maj@k")),
        ("Tokens, mean", lambda one: f"{one['tokens']['mean']:.0f}"),
        ("Tokens, median", lambda one: f"{one['tokens']['median']:.0f}"),
        ("Tokens, 95th percentile", lambda one: f"{one['tokens']['p95']:.0f}"),
        ("Truncated, % of samples", lambda one: f"{100 * one['truncated']:.2f}"),
        ("Without an answer, samples", lambda one: str(one["no_answer"])),
        ("Not judged, samples", lambda one: _reasons(one["not_judged"])),
    ]
    rows = [(name, [show(one) for one in found]) for name, show in shown]
    note = "[low, high]: 95 % bootstrap interval over problems. A sample that could not be judged counts as wrong."
    return Table("By benchmark", [("", [one["title"] for one in found])], rows, [note], corner="")


def _level_tables(scores: Mapping[str, Any]) -> list[Table]:
    tables = []
    for one in scores["benchmarks"].values():
        if one["levels"]:
            groups = [("", ["Problems", "P@1", f"P@{one['k']}"])]
            rows = [
                (
                    f"{one['title']} {level}",
                    [str(part["problems"]), percent(100 * part["pass@1"]), percent(100 * part["pass@k"])],
                )
                for level, part in one["levels"].items()
            ]
            tables.append(Table(f"{one['title']} by level", groups, rows, corner="Level"))
    return tables


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} ({reason})" for reason, count in counts.items()) or "0"
