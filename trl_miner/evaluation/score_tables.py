"""The scores of a result folder as tables: `scores.md`, beside the paper's own rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..tables import Table
from ..text import for_markdown
from .paper import load_paper, paper_notes, paper_rows

MISSING = "-"


def scores_markdown(scores: Mapping[str, Any], paper: str | None = None) -> str:
    """Return the content of `scores.md`: the scores in a sentence each, warnings, and tables.

    Args:
        scores: Of `score_folder`.
        paper: A base model whose rows of the paper are shown too; None: none.
    """
    parts = [f"# Scores of {for_markdown(run_name(scores))}\n"]
    parts.append("".join(f"- {for_markdown(sentence)}\n" for sentence in score_sentences(scores)))
    for table in (_main_table(scores, paper), _detail_table(scores), _level_table(scores), _table_by_k(scores)):
        if table.rows:
            parts += [f"## {table.title}\n", table.markdown()]
    return "\n".join(parts)


def score_sentences(scores: Mapping[str, Any]) -> list[str]:
    """Return the scores of each benchmark in a sentence, then the warnings."""
    sentences = []
    for one in scores["benchmarks"].values():
        names = ("pass@1", "pass@k", "maj@k") if one["k"] > 1 else ("pass@1",)  # with one sample they are the same
        numbers = [
            f"{name.replace('k', str(one['k'])).capitalize()} "
            + _interval(one["intervals"][name], "{:.2f} % (95 %: {:.2f} to {:.2f})")
            for name in names
        ]
        if one["lenient_pass@1"] > one["pass@k"]["1"]:
            numbers.append(f"Pass@1 {100 * one['lenient_pass@1']:.2f} % if answers without a box count too")
        of = f"{one['problems']} problems, {one['samples']} samples of each"
        sentences.append(f"{one['title']}: {', '.join(numbers)}. {of}.")
    return [*sentences, *(f"Warning: {warning}" for warning in scores["warnings"])]


def run_name(scores: Mapping[str, Any]) -> str:
    """Return a Hub id, or the end of a path: the folders above it are nobody's business."""
    return "/".join(str(scores["settings"].get("model", "this run")).rstrip("/").split("/")[-2:])


def _main_table(scores: Mapping[str, Any], paper: str | None) -> Table:
    """Return Pass@1 and Pass@K of each benchmark and their average."""
    benchmarks = list(scores["benchmarks"].values())
    own = [(100 * one["pass@k"]["1"], 100 * one["pass@k"][str(one["k"])]) for one in benchmarks]
    rows = [[run_name(scores), *_with_average(own)]]
    notes = ["Percent. P@K is the unbiased estimate from all samples. Avg is the mean of the columns shown."]
    if paper is not None:
        ks = load_paper()["k"]
        for method, printed in paper_rows(paper).items():
            cells = []
            for one in benchmarks:
                first, last = printed.get(one["title"], (None, None))
                cells.append((first, last if one["k"] == ks.get(one["title"]) else None))
            rows.append([f"Paper: {method}", *_with_average(cells)])
        notes += paper_notes(scores["settings"], paper)
    header = ["Model", *(f"P@{k}" for one in benchmarks for k in (1, one["k"])), "P@1", "P@K"]
    groups = [(one["title"], 2) for one in benchmarks] + [("Avg", 2)]
    return Table("Pass@1 and Pass@K", header, rows, notes, groups)


def _detail_table(scores: Mapping[str, Any]) -> Table:
    """Return one column per benchmark: more fit on a screen that way round."""
    benchmarks = list(scores["benchmarks"].values())
    columns = [
        {
            "Problems": str(one["problems"]),
            "Samples of each": str(one["samples"]),
            "K": str(one["k"]),
            "Pass@1": _interval(one["intervals"]["pass@1"]),
            "Pass@1, a box or none": f"{100 * one['lenient_pass@1']:.2f}",
            "Pass@K": _interval(one["intervals"]["pass@k"]),
            "Maj@K": _interval(one["intervals"]["maj@k"]),
            **{f"Tokens, {name}": f"{value:.0f}" for name, value in one["tokens"].items()},
            "Truncated, % of samples": f"{100 * one['truncated']:.2f}",
            "Without an answer, samples": str(one["no_answer"]),
            "Not judged, samples": ", ".join(f"{n} ({reason})" for reason, n in one["not_judged"].items()) or "0",
        }
        for one in benchmarks
    ]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    note = "[low, high]: 95 % bootstrap interval over problems. A sample that could not be judged counts as wrong."
    return Table("By benchmark", ["", *(one["title"] for one in benchmarks)], rows, [note])


def _level_table(scores: Mapping[str, Any]) -> Table:
    rows = [
        [f"{one['title']} {level}", str(part["problems"]), str(one["k"])]
        + [f"{100 * part[metric]:.2f}" for metric in ("pass@1", "pass@k")]
        for one in scores["benchmarks"].values()
        for level, part in one["levels"].items()
    ]
    return Table("By level", ["Level", "Problems", "K", "P@1", "P@K"], rows)


def _table_by_k(scores: Mapping[str, Any]) -> Table:
    benchmarks = list(scores["benchmarks"].values())
    ks = sorted({int(k) for one in benchmarks for k in one["maj@k"]})
    rows = []
    for one in benchmarks:
        votes = {k: vote["mean"] for k, vote in one["maj@k"].items()}
        for name, shares in (("Pass@K", one["pass@k"]), ("Maj@K", votes)):
            cells = [f"{100 * shares[str(k)]:.2f}" if str(k) in votes else MISSING for k in ks]
            rows.append([f"{one['title']}, {name}", *cells])
    note = f"Maj@K: mean over {scores['repeats']} draws without replacement."
    return Table("By K", ["", *map(str, ks)], rows, [note])


def _with_average(scores: Sequence[Sequence[float | None]]) -> list[str]:
    """Return the cells of each benchmark's (Pass@1, Pass@K), then those of their means, where none is missing."""
    means = []
    for metric in zip(*scores, strict=True):
        known = [value for value in metric if value is not None]
        means.append(sum(known) / len(known) if len(known) == len(metric) else None)
    return [MISSING if value is None else f"{value:.2f}" for pair in (*scores, means) for value in pair]


def _interval(measured: Mapping[str, float], form: str = "{:.2f} [{:.2f}, {:.2f}]") -> str:
    return form.format(*(100 * measured[part] for part in ("mean", "low", "high")))
