"""The paper's tables as printed, `paper.json`: which rows may stand beside a result, and how far they compare."""

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any


@functools.cache
def load_paper() -> dict[str, Any]:
    """Return the paper's tables as printed."""
    return json.loads(resources.files(__package__).joinpath("paper.json").read_text(encoding="utf-8"))


def known_base_model(name: str) -> str | None:
    """Return the paper's name of a base model, given as the paper writes it or as on the Hub; None: not trained."""
    names = {_plain(known): known for known in load_paper()["rows"]}
    return names.get(_plain(name.rpartition("/")[2]))


def paper_rows(base_model: str) -> dict[str, dict[str, list[float | None]]]:
    """Return the paper's scores for a base model and the methods that train it.

    Args:
        base_model: As the paper writes it, or an id on the Hub.

    Returns:
        By method, "Base" first, and title, such as "AIME2024", or "Avg" for the printed average: [Pass@1, Pass@K] in
        percent; None: not reported.

    Raises:
        ValueError: The paper does not have this model.
    """
    known = known_base_model(base_model)
    if known is None:
        names = ", ".join(load_paper()["rows"])
        raise ValueError(f"The paper's rows exist for {names}: got {base_model}. Name one of them, or none.")
    return load_paper()["rows"][known]


def paper_notes(settings: Mapping[str, Any], base_model: str) -> list[str]:
    """Say whose rows these are, how the paper samples otherwise, and what is known to be wrong in them."""
    paper, known = load_paper(), known_base_model(base_model)
    notes = [f"Paper: {paper['source']}, base model {known}. Its P@K is left out where its K is another."]
    others = [
        f"{name} {value}, here {settings[name]}"
        for name, value in paper["settings"].items()
        if settings.get(name, value) != value
    ]
    if others:
        notes.append(f"The paper samples otherwise: {'; '.join(others)}.")
    return [*notes, *paper["notes"].get(known, [])]


def _plain(name: str) -> str:
    return name.casefold().replace("-", "")
