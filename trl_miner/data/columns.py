"""How to read the fields of a problem from a row: the cells of the table of benchmarks.

A cell is the name of a column; a name with functions of its value behind it, called in turn; or a
function of the row. A missing column is a KeyError, and content that is not understood a
ValueError.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from ..grading.choices import option_index
from .reading import Row

Cell = str | tuple[Any, ...] | Callable[[Row], Any]


def read(cell: Cell, row: Row) -> Any:
    """Return the value of a cell in a row."""
    if callable(cell):
        return cell(row)
    name, *functions = (cell,) if isinstance(cell, str) else cell
    value = row[name]
    try:
        for function in functions:
            value = function(value)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error
    return value


def text(value: Any) -> str:
    """Return a value as text: stripped, None as "", and a list joined with commas."""
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value).strip()


def number(value: Any) -> str:
    """Return a number as people write it: "27" for 27.0 and "27.0". Other text stays as it is."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text(value))


def marked(value: Any) -> str:
    """Return the number behind the #### that ends a worked solution, without commas."""
    return behind_mark(value).replace(",", "")


def behind_mark(value: Any) -> str:
    """Return what stands behind the #### that ends a worked solution."""
    _, mark, answer = text(value).rpartition("####")
    if not mark:
        raise ValueError(
            f"must end with #### and the answer: got {text(value)[-60:]!r}. Correct it."
        )
    return answer.strip()


def only(value: Any) -> Any:
    """Return the one element of a list."""
    if not isinstance(value, (list, tuple)) or len(value) != 1:
        raise ValueError(f"must be a list of one: got {value!r}. Correct it, or drop the row.")
    return value[0]


def undollared(value: Any) -> str:
    """Return LaTeX, without the dollar signs where they enclose all of it."""
    return re.sub(r"^\$+([^$]*)\$+\.?$", r"\1", text(value))


def options(value: Any) -> tuple[str, ...]:
    """Return the choices of a list of texts, or of {"A": text, ...}.

    Empty choices at the end are padding and dropped; letters must be A, B, C, ... without gaps.
    """
    if isinstance(value, Mapping):
        letters = sorted(value)
        if letters != list(ascii_uppercase[: len(letters)]):
            raise ValueError(f"must have the letters A, B, C, ...: got {letters}. Correct them.")
        value = [value[letter] for letter in letters]
    if not isinstance(value, (list, tuple)):
        raise ValueError(
            f"must be a list of texts or a text for each letter: got {value!r}. Correct it."
        )
    texts = [text(option) for option in value]
    while texts and not texts[-1]:
        texts.pop()
    return tuple(texts)


def letter(value: Any) -> str:
    """Return the letter of a choice, for a letter or for its index, counted from 0."""
    value = text(value)
    if re.fullmatch(r"[A-Za-z]", value):
        return str(value.upper())
    if re.fullmatch(r"\d+", value) and int(value) < 26:
        return ascii_uppercase[int(value)]
    raise ValueError(
        f"must be a letter or a number from 0: got {value!r}. Correct it, or drop the row."
    )


def choice(value: Any, options: Sequence[str]) -> str:
    """Return the letter of the option that a gold names, or the gold as text where there are no
    options.

    Where it names none of them, the text names none either: "4" may be an option."""
    index = option_index(value, options)
    if index is not None:
        return ascii_uppercase[index]
    return f"index {value}" if options and isinstance(value, (int, float)) else text(value)


@cache
def pubmedqa_test_ids() -> frozenset[str]:
    """Return the ids of PubMedQA's official test set."""
    lines = (
        Path(__file__).with_name("pubmedqa_test_ids.txt").read_text(encoding="utf-8").splitlines()
    )
    return frozenset(name for line in lines if not line.startswith("#") for name in line.split())
