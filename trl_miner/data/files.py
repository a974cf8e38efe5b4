"""Read data sets: a text file or a spreadsheet as it is written, a folder or a data set on the Hub
by `datasets`.

`datasets` would make dates of text and floats of large numbers: a reference answer must stay as it
is.
"""

import io
import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pandas
from datasets import Dataset, load_dataset

from ..common.errors import describe
from . import arithmetic
from .columns import Row
from .settings import DataArguments

TABLES = ".csv", ".tsv", ".txt", ".xlsx"
TEXT: Any = {"dtype": str, "keep_default_na": False}  # how pandas reads cells


def load_splits(args: DataArguments) -> dict[str, Dataset]:
    """Return the rows of `dataset_name` by split: of a file, a folder, the Hub, or the embedded
    world.

    Raises:
        ValueError: None is named, or a file cannot be read.
        OSError: There is none of that name.
    """
    name = args.dataset_name
    if not name:
        raise ValueError("There is no data: name a file, or a data set with --dataset_name.")
    if name == arithmetic.MODEL:
        return {split: arithmetic.load_dataset(split) for split in arithmetic.SPLITS}
    if Path(name).is_file():
        return {args.dataset_train_split: read_file(Path(name), args.sheet)}
    return dict(load_dataset(name, args.dataset_config))


def read_file(path: Path, sheet: str | None = None) -> Dataset:
    """Return the rows of a file: .csv, .tsv, .txt, .json, .jsonl, .parquet or .xlsx.

    Raises:
        ValueError: It cannot be read, is of another kind, or has no rows.
    """
    kind = path.suffix.lower()
    try:
        if kind == ".parquet":
            rows = Dataset.from_parquet(str(path))
        elif kind in (".json", ".jsonl"):
            objects = _json_rows(_read_text(path), kind == ".jsonl")
            empty = dict.fromkeys(chain(*objects))
            rows = Dataset.from_list([empty | row for row in objects], on_mixed_types="use_json")
        elif kind in TABLES:
            table = _sheet(path, sheet) if kind == ".xlsx" else _table(_read_text(path))
            rows = Dataset.from_pandas(table, preserve_index=False)
        else:
            raise ValueError(f"unpack it, or save it as {', '.join(TABLES)}, .json or .parquet")
    except Exception as error:  # pandas and pyarrow may raise anything
        raise ValueError(f"{path} cannot be read: {describe(error)}") from error
    if not len(rows):
        raise ValueError(f"{path} has no rows.")
    return rows


def _read_text(path: Path) -> str:
    """Return a text in UTF-8, else in the encoding of Western languages, where accents stand alone
    or in pairs, or else of Chinese."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        is_chinese = re.search(rb"[\x80-\xff]{3}", content)
        return content.decode("gb18030" if is_chinese else "cp1252")


def _table(text: str) -> Any:
    """Return the rows of a table. Its header is read as a row: pandas would rename a second column
    of one name, and take a row with more cells than names for one with a label."""
    header = text.lstrip().partition("\n")[0]
    mark = next((mark for mark in "\t;,|" if mark in header), ",")
    cells = pandas.read_csv(io.StringIO(text), sep=mark, header=None, **TEXT)
    return cells[1:].set_axis(cells.iloc[0].str.strip(), axis=1)


def _sheet(path: Path, sheet: str | None) -> Any:
    """Return the rows of the sheet that is named, or of the only one."""
    sheets = pandas.read_excel(path, sheet_name=None, engine="calamine", **TEXT)
    if sheet is None and len(sheets) == 1:
        [sheet] = sheets
    if sheet not in sheets:
        raise ValueError(f"its sheets are {', '.join(sheets)}: name one with --sheet")
    return sheets[sheet]


def _json_rows(text: str, is_lines: bool) -> list[Row]:
    """Return the rows of lines, of a list, of {"data": [...]}, or of columns, {name: [...]} or
    {name: {index: ...}}, as pandas writes them."""
    joined = re.sub(r"\}(?=\s*\n\s*\{)", "},", text)  # objects below one another
    value = json.loads(text if joined == text and not is_lines else f"[{joined}]")
    if isinstance(value, list):
        return value
    return value.get("data") or pandas.DataFrame(value, dtype=object).to_dict("records")
