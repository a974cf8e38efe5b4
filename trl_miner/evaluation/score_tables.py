"""The scores of a result folder in words, and beside the paper's own rows: `scores.md`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..common.importing import did_you_mean
from ..common.tables import Table
from ..common.text import for_markdown
from .graded import PAPER

MISSING = "-"


def scores_markdown(scores: Mapping[str, Any], paper: str | None = None) -> str:
    """Return the content of `scores.md`: the scores in a sentence each, and warnings.

    Args:
        scores: Of `score_folder`.
        paper: A base model; a table shows the scores above the paper's rows for it. None: no table.
    """
    title = f"# Scores of {for_markdown(run_name(scores))}\n"
    sentences = "".join(f"- {for_markdown(sentence)}\n" for sentence in score_sentences(scores))
    tables = level_tables(scores)
    if paper:
        tables = [_beside_paper(scores, paper), *tables, *_tables_by_k(scores, paper)]
    titled = (f"{table.title}:\n\n{table.markdown()}" for table in tables)
    return "\n".join([title, sentences, *titled])


def level_tables(scores: Mapping[str, Any]) -> list[Table]:
    """Return Pass@1 by level, a table for each benchmark whose problems have more than one."""
    return [
        Table(
            f"{one['title']}, Pass@1 by level",
            ["Level", "Problems", "Pass@1, %"],
            [[name, str(size), _cell(100 * rate)] for name, size, rate in one["levels"]],
        )
        for one in scores["benchmarks"].values()
        if len(one["levels"]) > 1
    ]


def _tables_by_k(scores: Mapping[str, Any], base_model: str) -> list[Table]:
    """Return Pass@K and Maj@K by K above the paper's rows, where it has them."""
    by_title, tables = PAPER["by_k"].get(_name_in_paper(base_model), {}), []
    for one in scores["benchmarks"].values():
        by_metric = {"pass@k": one["pass@k_intervals"], "maj@k": one["maj@k"]}
        for metric, (header, *rows) in by_title.get(one["title"], {}).items():
            means = [by_metric[metric].get(size, {}).get("mean") for size in header[1:]]
            own = [run_name(scores), *(_cell(mean and 100 * mean) for mean in means)]
            tables.append(Table(f"{one['title']}, {metric.capitalize()}", header, [own, *rows]))
    return tables


def score_sentences(scores: Mapping[str, Any]) -> list[str]:
    """Return the scores of each benchmark in a sentence, then the warnings."""
    sentences = []
    for one in scores["benchmarks"].values():
        # with one sample they are the same
        names = ("pass@1", "pass@k", "maj@k") if one["k"] > 1 else ("pass@1",)
        numbers = []
        for name in names:
            mean, low, high = (
                100 * one["intervals"][name][part] for part in ("mean", "low", "high")
            )
            title = name.replace("k", str(one["k"])).capitalize()
            numbers.append(f"{title} {mean:.2f} % (95 %: {low:.2f} to {high:.2f})")
        if one["lenient_pass@1"] > one["pass@k"]["1"]:
            numbers.append(
                f"Pass@1 {100 * one['lenient_pass@1']:.2f} % if answers without a box count too"
            )
        of = (
            f"{one['problems']} problems, {one['samples']} samples of each, of {one['tokens']:.0f}"
            " tokens on average"
        )
        without = f"{100 * one['truncated']:.2f} % cut off, {one['no_answer']} without an answer"
        sentences.append(f"{one['title']}: {', '.join(numbers)}. {of}; {without}.")
    return [*sentences, *(f"Warning: {warning}" for warning in scores["warnings"])]


def run_name(scores: Mapping[str, Any]) -> str:
    """Return a Hub id, or the end of a path: the folders above it are nobody's business. An adapter
    goes first."""
    settings = scores["settings"]
    return "/".join(
        str(settings.get("adapter") or settings.get("model", "this run"))
        .rstrip("/")
        .split("/")[-2:]
    )


def paper_rows(base_model: str) -> dict[str, dict[str, list[float | None]]]:
    """Return the paper's scores for a base model, named as in the paper or on the Hub, and the
    methods that train it.

    Returns:
        By method, "Base" first, and title, such as "AIME2024", or "Avg" for the printed average:
        [Pass@1, Pass@K] in percent; None: not reported.

    Raises:
        ValueError: The paper does not have this model.
    """
    return PAPER["rows"][_name_in_paper(base_model)]


def _name_in_paper(base_model: str) -> str:
    def plain(name: str) -> str:
        return name.rpartition("/")[2].casefold().replace("-", "")

    for known in PAPER["rows"]:
        if plain(known) == plain(base_model):
            return str(known)
    raise ValueError(
        f"The paper has no model {base_model!r}.{did_you_mean(base_model, PAPER['rows'])} Its models:"
        f" {', '.join(PAPER['rows'])}."
    )


def _beside_paper(scores: Mapping[str, Any], base_model: str) -> Table:
    """Return Pass@1 and Pass@K of each benchmark and their average, and below them the paper's."""
    benchmarks = list(scores["benchmarks"].values())
    own = [(100 * one["pass@k"]["1"], 100 * one["pass@k"][str(one["k"])]) for one in benchmarks]
    rows = [[run_name(scores), *_with_average(own)]]
    for method, printed in paper_rows(base_model).items():
        cells = []
        for one in benchmarks:
            first, last = printed.get(one["title"], (None, None))
            cells.append((first, last if one["k"] == PAPER["k"].get(one["title"]) else None))
        rows.append([f"Paper: {method}", *_with_average(cells)])
    columns = [f"{one['title']} P@{k}" for one in benchmarks for k in (1, one["k"])]
    header = ["Model", *columns, "Avg P@1", "Avg P@K"]
    return Table("Pass@1 and Pass@K", header, rows, _paper_notes(scores["settings"], base_model))


def _paper_notes(settings: Mapping[str, Any], base_model: str) -> list[str]:
    """Say whose rows these are, how the paper samples otherwise, and what is known to be wrong in
    them."""
    known = _name_in_paper(base_model)
    asked = PAPER["settings"].items()
    others = [
        f"{name} {value}, here {settings[name]}"
        for name, value in asked
        if settings.get(name, value) != value
    ]
    return [
        (
            "Percent. P@K is the unbiased estimate from all samples. Avg is the mean of the columns"
            " shown."
        ),
        (
            f"Paper: {PAPER['source']}, base model {known}. Its P@K is left out where its K is"
            " another."
        ),
        *([f"The paper samples otherwise: {'; '.join(others)}."] if others else []),
        *PAPER["notes"].get(known, []),
    ]


def _with_average(scores: Sequence[Sequence[float | None]]) -> list[str]:
    """Return the cells of each benchmark's (Pass@1, Pass@K), then those of their means, where none
    is missing."""
    means = []
    for metric in zip(*scores, strict=True):
        known = [value for value in metric if value is not None]
        means.append(sum(known) / len(known) if len(known) == len(metric) else None)
    return [_cell(value) for pair in (*scores, means) for value in pair]


def _cell(percent: float | None) -> str:
    return MISSING if percent is None else f"{percent:.2f}"
