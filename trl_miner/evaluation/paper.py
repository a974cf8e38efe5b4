"""The paper's tables as printed, `paper.json`: which rows may stand beside a result, and what is wrong in them."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any


@functools.cache
def load_paper() -> dict[str, Any]:
    """Return the paper's tables as printed."""
    return json.loads(resources.files(__package__).joinpath("paper.json").read_text(encoding="utf-8"))


def known_base_model(name: str) -> str | None:
    """Return the paper's name of a base model.

    Args:
        name: As the paper writes it, or an id on the Hub.

    Returns:
        A key of `load_paper()["main"]`; None: the paper does not train it.
    """
    names = {_plain(known): known for known in load_paper()["main"]}
    return names.get(_plain(name.rpartition("/")[2]))


def paper_rows(base_model: str, benchmarks: Sequence[str]) -> dict[str, dict[str, list[float | None]]]:
    """Return the paper's scores for a base model and the methods that train it: those of the main table, then those
    that only the tables of the ablation, of exploration and of lambda have.

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
    tables = [load_paper()[name].get(known, {}) for name in ("main", "ablation", "exploration", "sensitivity")]
    rows = {method: row for table in reversed(tables) for method, row in table.items()}  # the main table's row counts
    rows = {method: rows[method] for table in tables for method in table}
    return {method: {title: row.get(title, [None, None]) for title in benchmarks} for method, row in rows.items()}


def paper_scale(base_model: str | None, metric: str, title: str) -> dict[str, dict[str, list[float]]]:
    """Return the paper's [mean, deviation] by method and K.

    Args:
        base_model: As for `paper_rows`; None: no rows.
        metric: "pass@k" or "maj@k".
        title: Of the benchmark.

    Returns:
        Empty where the paper has none.
    """
    known = known_base_model(base_model) if base_model is not None else None
    return load_paper()[metric.replace("@", "_at_")].get(known, {}).get(title, {})


def paper_notes(scores: Mapping[str, Any], base_model: str) -> list[str]:
    """Say whose rows these are, where they cannot be compared, and what is known to be wrong in them."""
    printed, known = load_paper(), known_base_model(base_model)
    benchmarks = list(scores["benchmarks"].values())
    notes = [f"Paper: {printed['source']}, base model {known}."]
    other_k = [
        f"{one['title']} (K={printed['k'][one['title']]})"
        for one in benchmarks
        if printed["k"].get(one["title"], one["k"]) != one["k"]
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
    titles = {"Avg", *(one["title"] for one in benchmarks)}
    for slip in printed["slips"]:
        if slip["base_model"] == known and slip["column"] in titles:
            place = f"{slip['row']}, {slip['column']} {slip['metric']}"
            notes.append(f"The paper prints {slip['printed']:.2f} for {place}, but {slip['is']}.")
    return notes


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())
