"""Read data sets: text files and spreadsheets as they are written, others by `datasets`.

`datasets` would make dates of text and floats of large numbers: a reference answer must stay as it
is.
"""

import ast
import atexit
import io
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from . import arithmetic
from .settings import DataArguments

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame

Row = dict[str, Any]


def load_splits(args: DataArguments) -> dict[str, "Dataset"]:
    """Return the rows of `dataset_name` by split: of a file, a folder, the Hub, or the embedded
    world.

    Raises:
        ValueError: It cannot be loaded, or has no rows.
    """
    from datasets import concatenate_datasets, load_dataset, load_dataset_builder

    name = args.dataset_name
    if not name:
        raise ValueError("There is no data: name a file, or a data set with --dataset_name.")
    if name == arithmetic.MODEL:
        return {split: arithmetic.load_dataset(split) for split in arithmetic.SIZES}
    path = Path(name)
    if path.is_file():
        return {args.dataset_train_split: read_file(path, args.sheet)}
    try:
        if not path.is_dir():
            return dict(load_dataset(name, args.dataset_config, revision=args.dataset_revision))
        files = load_dataset_builder(name, args.dataset_config).config.data_files or {}
    except Exception as error:  # the loaders of `datasets` may raise anything
        raise ValueError(
            f"There is no data set {name}: {one_line(error.__cause__ or error)}."
        ) from error
    parts = {split: [read_file(Path(file)) for file in each] for split, each in files.items()}
    return {str(split): concatenate_datasets(each) for split, each in parts.items()}


def read_file(path: Path, sheet: str | None = None) -> "Dataset":
    """Return the rows of a file: .jsonl, .json, .parquet, .xlsx, or else a table of text.

    Raises:
        ValueError: It cannot be read, or has no rows.
    """
    from datasets import Dataset

    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            rows = Dataset.from_parquet(str(path))
        elif suffix in (".json", ".jsonl"):
            rows = _of_rows(_json_rows(read_text(path), suffix == ".jsonl"))
        else:
            table = _sheet(path, sheet) if suffix == ".xlsx" else _table(path)
            rows = Dataset.from_pandas(table, preserve_index=False)
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {one_line(error)}.") from error
    if not len(rows):
        raise ValueError(f"{path} has no rows.")
    return rows


def one_line(error: BaseException) -> str:
    """Return what an error says, in a line without a full stop."""
    return " ".join(str(error).split())[:400].removesuffix(".")


def read_text(path: Path) -> str:
    """Return a text in UTF-8 or UTF-16, else in the encoding of Western languages, where accents
    stand alone or in pairs, or else of Chinese.

    Raises:
        ValueError: It is in none of these.
    """
    content = path.read_bytes()
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16")
    for encoding in (
        "utf-8-sig",
        "gb18030" if re.search(rb"[\x80-\xff]{3}", content) else "cp1252",
    ):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise ValueError("its encoding is not known: save it as UTF-8")


# Tables


def _table(path: Path) -> "DataFrame":
    """Return the rows of a csv or tsv file. Its header is read as a row: pandas would take rows
    with more cells than names for rows with a label, and rename a second column of one name."""
    import pandas

    text = read_text(path)
    header = re.sub('"[^"]*"', "", text.lstrip().partition("\n")[0])
    mark = next((mark for mark in "\t;,|" if mark in header), ",")
    options: Any = {"header": None, "dtype": str, "keep_default_na": False}
    try:
        cells = pandas.read_csv(io.StringIO(text), sep=mark, **options)
    except pandas.errors.ParserError as error:
        raise ValueError(f"{error}: a cell with {mark!r} or a quote in it needs quotes") from error
    names = cells.iloc[0].str.strip()
    if names.duplicated().any():
        raise ValueError(f"several columns have one name in {', '.join(names)}")
    return cells[1:].set_axis(names, axis=1)


def _sheet(path: Path, sheet: str | None) -> "DataFrame":
    """Return the rows of the sheet that is named, or of the only one that is not empty."""
    import pandas

    options: Any = {"engine": "calamine", "dtype": str, "keep_default_na": False}
    sheets = pandas.read_excel(path, sheet_name=None, **options)
    filled = [rows for name, rows in sheets.items() if len(rows) and sheet in (None, name)]
    if len(filled) != 1:
        raise ValueError(f"its sheets are {', '.join(map(repr, sheets))}: name one with --sheet")
    return filled[0]


# JSON


def _json_rows(text: str, is_lines: bool) -> Iterable[Any]:
    """Return the rows of lines, of a list, of the only list in an object, or of columns, {name:
    [...]} or {name: {index: ...}}, as pandas writes them."""
    import pandas

    try:
        value = None if is_lines else json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":  # as lines have, under another name
            raise
        value = None
    if value is None:
        return _json_lines(text)
    lists = (
        [each for each in value.values() if isinstance(each, list)]
        if isinstance(value, dict)
        else [value]
    )
    return lists[0] if len(lists) == 1 else pandas.DataFrame(value, dtype=object).to_dict("records")


def _json_lines(text: str) -> Iterator[Any]:
    # splitlines would also cut at U+2028 inside a string, and hold all lines at once
    for number, line in enumerate(re.finditer("[^\n]*[^\n\\s][^\n]*", text), 1):
        try:
            yield json.loads(line[0])
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON ({error})") from error


def _of_rows(rows: Iterable[Any]) -> "Dataset":
    """Return objects as a data set, a part of them in memory at a time."""
    from datasets import Dataset, concatenate_datasets

    parts, left = [Dataset.from_list([])], iter(rows)
    while some := [*islice(left, 100_000)]:
        if not all(isinstance(row, dict) for row in some):
            raise ValueError("each row must be an object with a question and an answer")
        names = dict.fromkeys(name for row in some for name in row)
        some[0] = names | some[0]
        parts.append(Dataset.from_list(some, on_mixed_types="use_json"))
    return concatenate_datasets(parts[1:] or parts)


# Cells


def as_text(value: Any) -> str:
    """Return a cell as text, stripped: "" for None and NaN, "27" for 27.0, of a list its values.

    >>> as_text(0.1 + 0.2)
    '0.3'
    """
    if isinstance(value, list):  # SQuAD has the same answer of several readers
        return ", ".join(dict.fromkeys(map(as_text, value)))
    if isinstance(value, float):  # Arrow makes 2.0 of 2 beside 0.5
        return "" if value != value else f"{value:.15g}"
    return "" if value is None else str(value).strip()


def parsed(text: str) -> Any:
    """Return the list or dictionary that a text is, as JSON or Python writes it; else the text.

    >>> parsed("['3', '4']")
    ['3', '4']
    """
    for read in (json.loads, ast.literal_eval) if text[:1] in ("[", "{") else ():
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


@cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="trl_miner_data_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def new_file() -> str:
    """Return the path of a file for rows, which goes when the process ends."""
    return f"{_folder()}/{uuid4().hex}.arrow"
