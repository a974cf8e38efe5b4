"""The scores of a result folder as tables: `scores.md`, beside the paper's own rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..tables import Table
from ..text import for_markdown
from .paper import load_paper, paper_notes, paper_rows, paper_scale

MISSING = "-"
_IN_WORDS = "{:.2f} % (95 %: {:.2f} to {:.2f})"


def scores_markdown(scores: Mapping[str, Any], paper: str | None = None) -> str:
    """Return the content of `scores.md`: the scores in a sentence each, warnings, and tables of scores, intervals,
    lengths and levels, and by K.

    Args:
        scores: Of `score_folder`.
        paper: A base model whose rows of the paper are shown too; None: none.
    """
    parts = [f"# Scores of {for_markdown(run_name(scores))}\n"]
    parts.append("".join(f"- {for_markdown(sentence)}\n" for sentence in score_sentences(scores)))
    parts += [main_table(scores, paper).markdown(), "## By benchmark\n", _detail_table(scores).markdown()]
    if any(one["levels"] for one in scores["benchmarks"].values()):
        parts += ["## By level\n", *(table.markdown() for table in _level_tables(scores))]
    for table in scale_tables(scores, paper):
        parts += [f"## {for_markdown(table.title)}\n", table.markdown()]
    return "\n".join(parts)


def score_sentences(scores: Mapping[str, Any]) -> list[str]:
    """Return the scores of each benchmark in a sentence, then the warnings."""
    sentences = []
    for one in scores["benchmarks"].values():
        names = ("pass@1", "pass@k", "maj@k") if one["k"] > 1 else ("pass@1",)  # with one sample they are the same
        numbers = [
            f"{name.replace('k', str(one['k'])).capitalize()} {_interval(one['intervals'][name], _IN_WORDS)}"
            for name in names
        ]
        if one["lenient_pass@1"] > one["pass@k"]["1"]:
            numbers.append(f"Pass@1 {100 * one['lenient_pass@1']:.2f} % if answers without a box count too")
        of = f"{one['problems']} problems, {one['samples']} samples of each"
        sentences.append(f"{one['title']}: {', '.join(numbers)}. {of}.")
    return [*sentences, *(f"Warning: {warning}" for warning in scores["warnings"])]


def main_table(scores: Mapping[str, Any], paper: str | None = None) -> Table:
    """Return Pass@1 and Pass@K of each benchmark and their average. For the arguments see `scores_markdown`.

    A paper's Pass@K is left out where its K is another.
    """
    benchmarks = list(scores["benchmarks"].values())
    own = [(100 * one["pass@k"]["1"], 100 * one["pass@k"][str(one["k"])]) for one in benchmarks]
    rows = [[run_name(scores), *_with_average(own)]]
    notes = ["Percent. P@K is the unbiased estimate from all samples. Avg is the mean of the columns shown."]
    if paper is not None:
        ks = load_paper()["k"]
        for method, printed in paper_rows(paper, [one["title"] for one in benchmarks]).items():
            cells = [
                (printed[one["title"]][0], printed[one["title"]][1] if one["k"] == ks.get(one["title"]) else None)
                for one in benchmarks
            ]
            rows.append([f"Paper: {method}", *_with_average(cells)])
        notes += paper_notes(scores, paper)
    header = ["Model", *(f"P@{k}" for one in benchmarks for k in (1, one["k"])), "P@1", "P@K"]
    groups = [(one["title"], 2) for one in benchmarks] + [("Avg", 2)]
    return Table("Pass@1 and Pass@K", header, rows, notes, groups)


def scale_tables(scores: Mapping[str, Any], paper: str | None = None) -> list[Table]:
    """Return two tables per benchmark, Pass@K and Maj@K for growing K. For the arguments see `scores_markdown`."""
    tables = []
    for one in scores["benchmarks"].values():
        ks = list(one["maj@k"])
        for metric, name in (("pass@k", "Pass@K"), ("maj@k", "Maj@K")):
            rows = [[run_name(scores), *(_scale_cell(one[metric][k]) for k in ks)]]
            printed = paper_scale(paper, metric, one["title"])
            for method, row in printed.items():
                rows.append([f"Paper: {method}", *(_spread(*row[k]) if k in row else MISSING for k in ks)])
            notes = _scale_notes(metric, scores["repeats"], has_paper=bool(printed))
            tables.append(Table(f"{name} on {one['title']}, by K", ["Model", *ks], rows, notes))
    return tables


def run_name(scores: Mapping[str, Any]) -> str:
    """Return a Hub id, or the end of a path: the folders above it are nobody's business."""
    return "/".join(str(scores["settings"].get("model", "this run")).rstrip("/").split("/")[-2:])


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
            "Tokens, mean": f"{one['tokens']['mean']:.0f}",
            "Tokens, median": f"{one['tokens']['median']:.0f}",
            "Tokens, 95th percentile": f"{one['tokens']['p95']:.0f}",
            "Truncated, % of samples": f"{100 * one['truncated']:.2f}",
            "Without an answer, samples": str(one["no_answer"]),
            "Not judged, samples": _reasons(one["not_judged"]),
        }
        for one in benchmarks
    ]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    note = "[low, high]: 95 % bootstrap interval over problems. A sample that could not be judged counts as wrong."
    return Table("By benchmark", ["", *(one["title"] for one in benchmarks)], rows, [note])


def _level_tables(scores: Mapping[str, Any]) -> list[Table]:
    tables = []
    for one in scores["benchmarks"].values():
        if one["levels"]:
            rows = [
                [f"{one['title']} {level}", str(part["problems"])]
                + [f"{100 * part[metric]:.2f}" for metric in ("pass@1", "pass@k")]
                for level, part in one["levels"].items()
            ]
            header = ["Level", "Problems", "P@1", f"P@{one['k']}"]
            tables.append(Table(f"{one['title']} by level", header, rows))
    return tables


def _scale_notes(metric: str, repeats: int, *, has_paper: bool) -> list[str]:
    if metric == "maj@k":
        return [
            f"Mean over {repeats} draws without replacement ± the deviation of a problem over the draws, averaged "
            f"over problems, which is the paper's ±. The deviation of the score itself is in scores.json."
        ]
    notes = ["The run's Pass@K is the unbiased estimate from all samples: it has no draws, hence no ±."]
    if has_paper:
        notes.append(
            "The paper's are means of 10 draws ± the deviation of a problem over the draws, averaged over problems. "
            "At K=128 they lie below its main table's P@K, as even those draws do not hold all samples."
        )
    return notes


def _scale_cell(score: Any) -> str:
    if isinstance(score, Mapping):
        return _spread(100 * score["mean"], 100 * score["std_of_problems"])
    return f"{100 * score:.2f}"


def _with_average(scores: Sequence[Sequence[float | None]]) -> list[str]:
    """Return the cells of each benchmark's (Pass@1, Pass@K), then those of their means, where none is missing."""
    means = []
    for metric in zip(*scores, strict=True):
        known = [value for value in metric if value is not None]
        means.append(sum(known) / len(known) if len(known) == len(metric) else None)
    return [MISSING if value is None else f"{value:.2f}" for pair in (*scores, means) for value in pair]


def _interval(measured: Mapping[str, float], form: str = "{:.2f} [{:.2f}, {:.2f}]") -> str:
    return form.format(*(100 * measured[part] for part in ("mean", "low", "high")))


def _spread(mean: float, deviation: float) -> str:
    return f"{mean:.2f} ± {deviation:.2f}"


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} ({reason})" for reason, count in counts.items()) or "0"
