"""How to read the fields of a problem from a row: the cells of the table of benchmarks.

A cell is the name of a column or a function of the row. Functions raise KeyError for a missing column, and ValueError
for content that they do not understand.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from .reading import Row

Reader = Callable[[Row], Any]
Cell = str | Reader

PUBMEDQA_OPTIONS = ("yes", "no", "maybe")


def read(cell: Cell, row: Row) -> Any:
    """Return the value of a cell in a row."""
    return row[cell] if isinstance(cell, str) else cell(row)


def text(value: Any) -> str:
    """Return a value as text: stripped, None as "", and a list joined with commas."""
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value).strip()


def optional(name: str) -> Reader:
    """Read a column, or None where it is missing."""
    return lambda row: row.get(name)


def number(cell: Cell) -> Reader:
    """Read a number as people write it: "27" for 27.0 and "27.0". Other text stays as it is."""
    return lambda row: re.sub(r"^(-?\d+)\.0+$", r"\1", text(read(cell, row)))


def marked(name: str) -> Reader:
    """Read the number behind the #### that ends a worked solution, without commas."""

    def reader(row: Row) -> str:
        _, mark, answer = text(row[name]).rpartition("####")
        if not mark:
            raise ValueError(f"{name} must end with #### and the answer: got {text(row[name])[-60:]!r}. Correct it.")
        return answer.strip().replace(",", "")

    return reader


def only(name: str) -> Reader:
    """Read the one element of a list."""

    def reader(row: Row) -> Any:
        values = row[name]
        if not isinstance(values, (list, tuple)) or len(values) != 1:
            raise ValueError(f"{name} must be a list of one: got {values!r}. Correct it, or drop the row.")
        return values[0]

    return reader


def undollared(cell: Cell) -> Reader:
    """Read LaTeX, without the dollar signs where they enclose all of it."""
    return lambda row: re.sub(r"^\$+([^$]*)\$+\.?$", r"\1", text(read(cell, row)))


def options(name: str) -> Reader:
    """Read the choices from a list of texts, or from {"A": text, ...}.

    Empty choices at the end are padding and dropped; letters must be A, B, C, ... without gaps.
    """

    def reader(row: Row) -> tuple[str, ...]:
        value = row[name]
        if isinstance(value, Mapping):
            letters = sorted(value)
            if letters != list(ascii_uppercase[: len(letters)]):
                raise ValueError(f"the letters of {name} must be A, B, C, ...: got {letters}. Correct them.")
            value = [value[letter] for letter in letters]
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{name} must be a list of texts or a text for each letter: got {value!r}. Correct it.")
        texts = [text(option) for option in value]
        while texts and not texts[-1]:
            texts.pop()
        return tuple(texts)

    return reader


def letter(cell: Cell) -> Reader:
    """Read the letter of a choice, from a letter or from its index, counted from 0."""

    def reader(row: Row) -> str:
        value = text(read(cell, row))
        if re.fullmatch(r"[A-Za-z]", value):
            return value.upper()
        if re.fullmatch(r"\d+", value) and int(value) < 26:
            return ascii_uppercase[int(value)]
        raise ValueError(
            f"the answer must be a letter or a number from 0: got {value!r}. Correct it, or drop the row."
        )

    return reader


def is_false(name: str) -> Callable[[Row], bool]:
    """Keep the rows where a column of true and false, which CSV spells out, is false."""
    return lambda row: text(row[name]).casefold() in ("false", "0")


def is_pubmedqa_test(row: Row) -> bool:
    """Whether a question of PubMedQA belongs to the official test set."""
    return text(row["pubid"]) in pubmedqa_test_ids()


def pubmedqa_context(row: Row) -> str:
    """Return the sections of the abstract, one per line."""
    return "\n".join(text(section) for section in row["context"]["contexts"])


def pubmedqa_letter(row: Row) -> str:
    """Return yes, no or maybe as its letter among `PUBMEDQA_OPTIONS`."""
    decision = text(row["final_decision"]).casefold()
    if decision not in PUBMEDQA_OPTIONS:
        raise ValueError(f"final_decision must be yes, no or maybe: got {decision!r}. Correct it, or drop the row.")
    return ascii_uppercase[PUBMEDQA_OPTIONS.index(decision)]


@cache
def pubmedqa_test_ids() -> frozenset[str]:
    """Return the ids of PubMedQA's official test set."""
    lines = Path(__file__).with_name("pubmedqa_test_ids.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(name for line in lines if not line.startswith("#") for name in line.split())
