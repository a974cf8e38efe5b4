"""How to read the fields of a problem from a row: the cells of the table of benchmarks.

A cell is the name of a column, or of a field in it (`metadata.gold`, `answers.text.0`); a name with
functions of its value behind it, called in turn; or a function of the row. A missing column is a
KeyError, and content that is not understood a ValueError.
"""

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from ..common.importing import did_you_mean
from ..grading.choices import is_option, option_index
from .reading import Row

Cell = str | tuple[Any, ...] | Callable[[Row], Any]


def read(cell: Cell, row: Row) -> Any:
    """Return the value of a cell in a row."""
    if callable(cell):
        return cell(row)
    name, *functions = (cell,) if isinstance(cell, str) else cell
    value = field(row, name)
    try:
        for function in functions:
            value = function(value)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error
    return value


def field(row: Row, name: str) -> Any:
    """Return what a row has in a column, or in a field of one; None where a part of it is None."""
    if name in row or "." not in name:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise KeyError(name) from None
        if value is None:
            return None
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, Mapping) and part in value:
            value = value[part]
        else:
            raise KeyError(name)
    return value


def check_column(source: str, rows: Sequence[Row], name: str) -> None:
    """Raise ValueError for a column that no row has."""
    for row in rows:
        try:
            field(row, name)
        except KeyError:
            continue
        return
    names = [*dict.fromkeys(each for row in rows for each in fields(row))]
    hint = did_you_mean(name, names)
    raise ValueError(f"{source} has no column {name!r}.{hint} Its columns: {', '.join(names)}.")


def fields(row: Row) -> Iterator[str]:
    """Return the names of the columns of a row and, behind each that holds objects, of its
    fields."""
    for name, value in row.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in fields(dict(value)))


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
    """Return the choices of a list of texts, of {"A": text, ...}, of {"label": [...], "text": [...]},
    or of a text that holds one of these, or the choices on lines or between bars.

    Empty choices at the end are padding and dropped; letters must be A, B, C, ... without gaps, and
    are dropped where each choice begins with its own.
    """
    if isinstance(value, str):
        value = _options_of_text(value)
    if isinstance(value, Mapping) and isinstance(value.get("text"), (list, tuple)):
        value = value["text"]
    if isinstance(value, Mapping):
        letters = sorted(key for key, option in value.items() if option is not None)
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
    return _without_letters(texts)


def _without_letters(texts: Sequence[str]) -> tuple[str, ...]:
    marks = [
        re.match(rf"\W?{letter}[.):\]]\s*(?=\S)", option)
        for letter, option in zip(ascii_uppercase, texts, strict=False)
    ]
    if len(texts) < 2 or not all(marks):
        return tuple(texts)
    return tuple(option[mark.end() :] for option, mark in zip(texts, marks, strict=False) if mark)


def _options_of_text(text: str) -> Any:
    if text.lstrip()[:1] in ("[", "{") and len(text) <= 10_000:
        for read_text in (json.loads, ast.literal_eval):  # the second reads what pandas writes
            try:
                return read_text(text)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    parts = next((text.split(mark) for mark in "\n|;" if mark in text.strip()), [])
    return [part for part in map(str.strip, parts) if part] or text


def choice(value: Any, options: Sequence[str], first: int | None = None) -> str:
    """Return the letter of the option that a gold names, or the gold as text where there are no
    options. Numbers count the options from `first`, as `number_options` returns it.

    Where it names none of them, the text names none either: "4" may be an option."""
    if first is not None and isinstance(value, str) and is_number(value):
        value = int(value)
    index = option_index(value, options, first or 0)
    if index is not None:
        return ascii_uppercase[index]
    return f"index {value}" if options and isinstance(value, (int, float)) else text(value)


def number_options(
    rows: Iterable[Row],
    read_choice: Callable[[Row], tuple[Any, Sequence[str]] | None],
    first: int | None = None,
) -> int | None:
    """Return the number of the first option, 0 or 1, in golds that number options; None: these are
    letters or texts. `read_choice` returns gold and options of a row, or None where it has none.

    All rows together tell: where 0 occurs they count from 0, where the last option's number does,
    from 1. `first` is what the source says of rows that do not tell.

    Raises:
        ValueError: Some rows count from 0 and some from 1, or neither rows nor source tell.
    """
    numbered: list[tuple[Any, Sequence[str]]] = []
    for row in rows:
        try:
            gold_and_options = read_choice(row)
        except (KeyError, TypeError, ValueError):  # told, or dropped, where the row is read
            continue
        if gold_and_options and is_number(gold_and_options[0]):
            numbered.append(gold_and_options)
    texts = [(gold, options) for gold, options in numbered if isinstance(gold, str)]
    if texts and all(any(is_option(gold, each) for each in options) for gold, options in texts):
        return None  # numbers that are options
    numbers = [(float(gold), len(options)) for gold, options in numbered]
    if not numbers:
        return None
    from_0, from_1 = any(n == 0 for n, _ in numbers), any(n == count for n, count in numbers)
    if from_0 and from_1:
        raise ValueError(
            "The reference answers must number the options from 0 or from 1: got 0 and the number of all"
            " options. Write letters."
        )
    if not from_0 and not from_1 and first is None:
        raise ValueError(
            "The reference answers number the options, and no row tells whether from 0 or from 1. Set"
            " first_option: 0 or first_option: 1."
        )
    return 0 if from_0 else 1 if from_1 else first


def is_number(gold: Any) -> bool:
    """Return whether a gold may number an option: 2, 2.0 or "2"."""
    if isinstance(gold, str):
        return gold.strip().isdecimal()
    return (
        isinstance(gold, (int, float)) and not isinstance(gold, bool) and float(gold).is_integer()
    )


@cache
def pubmedqa_test_ids() -> frozenset[str]:
    """Return the ids of PubMedQA's official test set."""
    lines = (
        Path(__file__).with_name("pubmedqa_test_ids.txt").read_text(encoding="utf-8").splitlines()
    )
    return frozenset(name for line in lines if not line.startswith("#") for name in line.split())
