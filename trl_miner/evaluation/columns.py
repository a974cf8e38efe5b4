"""How to read a problem's fields from a row: the cells of the table of benchmarks.

A cell is the name of a column or a function of the row. Functions raise KeyError for a column that is not there, and
ValueError for content they do not know.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..data.reading import Row

Reader = Callable[[Row], Any]
Cell = str | Reader

PUBMEDQA_OPTIONS = ("yes", "no", "maybe")
_PUBMEDQA_TEST_IDS = Path(__file__).with_name("pubmedqa_test_ids.txt")


def read(cell: Cell, row: Row) -> Any:
    """What the cell says of this row."""
    return row[cell] if isinstance(cell, str) else cell(row)


def text(value: Any) -> str:
    """A value as text: without blanks around, a list joined with commas."""
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value).strip()


def first(*names: str) -> Reader:
    """The first of these columns that is there: mirrors of a data set differ in names."""

    def reader(row: Row) -> Any:
        for name in names:
            if name in row:
                return row[name]
        raise KeyError(" or ".join(names))

    return reader


def optional(cell: Cell) -> Reader:
    """None where the column is missing."""

    def reader(row: Row) -> Any:
        try:
            return read(cell, row)
        except KeyError:
            return None

    return reader


def constant(value: Any) -> Reader:
    """The same in every row."""
    return lambda row: value


def columns(*names: str) -> Reader:
    """The texts of several columns."""
    return lambda row: tuple(text(row[name]) for name in names)


def number(cell: Cell) -> Reader:
    """A number as people write it: "27" for 27.0 and "27.0", other text as it is."""
    return lambda row: re.sub(r"^(-?\d+)\.0+$", r"\1", text(read(cell, row)))


def only(name: str) -> Reader:
    """The one element of a list."""

    def reader(row: Row) -> Any:
        values = row[name]
        if not isinstance(values, (list, tuple)) or len(values) != 1:
            raise ValueError(f"{name} must be a list of one: got {values!r}. Correct it, or drop the row.")
        return values[0]

    return reader


def undollared(cell: Cell) -> Reader:
    """LaTeX without the dollar signs around it, where they go around all of it."""
    return lambda row: re.sub(r"^\$+([^$]*)\$+\.?$", r"\1", text(read(cell, row)))


def before(name: str, marker: str) -> Reader:
    """The text up to a marker; all of it where the marker is missing."""
    return lambda row: text(row[name]).split(marker)[0].strip()


def options(name: str) -> Reader:
    """Texts of the choices from a list of texts, {"A": text, ...}, or a list of {"key": "A", "value": text}.

    Empty choices at the end are padding and dropped; letters must be A, B, C, ... without gaps.
    """

    def reader(row: Row) -> tuple[str, ...]:
        given = row[name]
        if isinstance(given, (list, tuple)) and given and isinstance(given[0], Mapping):
            given = {
                entry.get("key", entry.get("letter")): entry.get("value", entry.get("content")) for entry in given
            }
        if isinstance(given, Mapping):
            letters = sorted(given)
            if letters != [_letter_of(index) for index in range(len(letters))]:
                raise ValueError(f"the letters of {name} must be A, B, C, ...: got {letters}. Correct them.")
            given = [given[letter] for letter in letters]
        if not isinstance(given, (list, tuple)):
            raise ValueError(f"{name} must be a list of texts or a text for each letter: got {given!r}. Correct it.")
        return _without_padding([text(option) for option in given])

    return reader


def letter(cell: Cell) -> Reader:
    """The letter of a choice, from a letter or from its number, counted from 0."""

    def reader(row: Row) -> str:
        value = text(read(cell, row))
        if re.fullmatch(r"[A-Za-z]", value):
            return value.upper()
        if re.fullmatch(r"\d+", value) and int(value) < 26:
            return _letter_of(int(value))
        raise ValueError(
            f"the answer must be a letter or a number from 0: got {value!r}. Correct it, or drop the row."
        )

    return reader


def is_false(name: str) -> Callable[[Row], bool]:
    """Rows where a column of true and false, which CSV spells out, is false."""
    return lambda row: text(row[name]).casefold() in ("false", "0")


def is_one_of(name: str, *values: str) -> Callable[[Row], bool]:
    """Rows where a column holds one of these values."""
    return lambda row: row[name] in values


def is_pubmedqa_test(row: Row) -> bool:
    """Whether a question of PubMedQA belongs to the official test set, listed in `pubmedqa_test_ids.txt`."""
    return text(row["pubid"]) in _pubmedqa_test_ids()


def pubmedqa_context(row: Row) -> str:
    """The sections of the abstract, one per line."""
    return "\n".join(text(section) for section in row["context"]["contexts"])


def pubmedqa_letter(row: Row) -> str:
    """yes, no or maybe as the letter of `PUBMEDQA_OPTIONS`."""
    decision = text(row["final_decision"]).casefold()
    if decision not in PUBMEDQA_OPTIONS:
        raise ValueError(f"final_decision must be yes, no or maybe: got {decision!r}. Correct it, or drop the row.")
    return _letter_of(PUBMEDQA_OPTIONS.index(decision))


@cache
def _pubmedqa_test_ids() -> frozenset[str]:
    lines = _PUBMEDQA_TEST_IDS.read_text(encoding="utf-8").splitlines()
    return frozenset(found for line in lines if not line.startswith("#") for found in line.split())


def _letter_of(index: int) -> str:
    return chr(ord("A") + index)


def _without_padding(texts: Sequence[str]) -> tuple[str, ...]:
    count = max((index + 1 for index, option in enumerate(texts) if option), default=0)
    return tuple(texts[:count])
