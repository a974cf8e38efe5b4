"""Read data sets: a text file or a spreadsheet as it is written, a folder or a data set on the Hub
by `datasets`.

`datasets` would make dates of text and floats of large numbers: a reference answer must stay as it
is.
"""

import io
import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import arithmetic
from .settings import DataArguments

if TYPE_CHECKING:
    from datasets import Dataset

Row = dict[str, Any]
TEXT: Any = {"dtype": str, "keep_default_na": False}  # how pandas reads cells


def load_splits(args: DataArguments) -> dict[str, "Dataset"]:
    """Return the rows of `dataset_name` by split: of a file, a folder, the Hub, or the embedded
    world.

    Raises:
        ValueError: It cannot be loaded, or has no rows.
    """
    from datasets import load_dataset

    name = args.dataset_name
    if not name:
        raise ValueError("There is no data: name a file, or a data set with --dataset_name.")
    if name == arithmetic.MODEL:
        return {split: arithmetic.load_dataset(split) for split in arithmetic.SIZES}
    if Path(name).is_file():
        return {args.dataset_train_split: read_file(Path(name), args.sheet)}
    try:
        return dict(load_dataset(name, args.dataset_config, revision=args.dataset_revision))
    except Exception as error:  # the loaders of `datasets` may raise anything
        raise ValueError(f"There is no data set {name}: {one_line(error)}.") from error


def read_file(path: Path, sheet: str | None = None) -> "Dataset":
    """Return the rows of a file: .jsonl, .json, .parquet, .xlsx, or else a table of text.

    Raises:
        ValueError: It cannot be read, or has no rows.
    """
    from datasets import Dataset

    try:
        if path.suffix == ".parquet":
            rows = Dataset.from_parquet(str(path))
        elif path.suffix in (".json", ".jsonl"):
            rows = _of_rows(_json_rows(read_text(path), path.suffix == ".jsonl"))
        else:
            table = _sheet(path, sheet) if path.suffix == ".xlsx" else _table(read_text(path))
            rows = Dataset.from_pandas(table, preserve_index=False)
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {one_line(error)}.") from error
    if not len(rows):
        raise ValueError(f"{path} has no rows.")
    return rows


def one_line(error: BaseException) -> str:
    """Return what an error says, in a line without a full stop."""
    return " ".join(str(error.__cause__ or error).split())[:400].removesuffix(".")


def read_text(path: Path) -> str:
    """Return a text in UTF-8 or UTF-16, else in the encoding of Western languages, where accents
    stand alone or in pairs, or else of Chinese.

    Raises:
        ValueError: It is in none of these.
    """
    content = path.read_bytes()
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16")
    other = "gb18030" if re.search(rb"[\x80-\xff]{3}", content) else "cp1252"
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode(other)


def _table(text: str) -> Any:
    """Return the rows of a table. Its header is read as a row: pandas would rename a second column
    of one name, and take a row with more cells than names for one with a label."""
    import pandas

    header = re.sub('"[^"]*"', "", text.lstrip().partition("\n")[0])
    mark = next((mark for mark in "\t;,|" if mark in header), ",")
    cells = pandas.read_csv(io.StringIO(text), sep=mark, header=None, **TEXT)
    return cells[1:].set_axis(cells.iloc[0].str.strip(), axis=1)


def _sheet(path: Path, sheet: str | None) -> Any:
    """Return the rows of the sheet that is named, or of the only one that is not empty."""
    import pandas

    sheets = pandas.read_excel(path, sheet_name=None, engine="calamine", **TEXT)
    filled = [rows for name, rows in sheets.items() if len(rows) and sheet in (None, name)]
    if len(filled) != 1:
        raise ValueError(f"its sheets are {', '.join(map(repr, sheets))}: name one with --sheet")
    return filled[0]


def _json_rows(text: str, is_lines: bool) -> Iterable[Any]:
    """Return the rows of lines, of a list, of the only list in an object, or of columns, {name:
    [...]} or {name: {index: ...}}, as pandas writes them."""
    import pandas

    if is_lines or "}\n{" in text:
        return _json_lines(text)
    value = json.loads(text)
    if isinstance(value, list):
        return value
    lists = [each for each in value.values() if isinstance(each, list)]
    return lists[0] if len(lists) == 1 else pandas.DataFrame(value, dtype=object).to_dict("records")


def _json_lines(text: str) -> Iterator[Any]:
    # splitlines would also cut at U+2028 inside a string, and hold all lines at once
    for number, line in enumerate(re.finditer(r".*\S.*", text), 1):
        try:
            yield json.loads(line[0])
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON ({error})") from None


def _of_rows(rows: Iterable[Row]) -> "Dataset":
    """Return objects as a data set, a part of them in memory at a time."""
    from datasets import Dataset, concatenate_datasets

    parts, left = [Dataset.from_list([])], iter(rows)
    while some := [*islice(left, 100_000)]:
        some[0] = dict.fromkeys(name for row in some for name in {**row}) | some[0]
        parts.append(Dataset.from_list(some, on_mixed_types="use_json"))
    return concatenate_datasets(parts[1:] or parts)


def as_text(value: Any) -> str:
    """Return a cell as text, stripped: "" for None and NaN, "27" for 27.0, of a list its values.

    >>> as_text(0.1 + 0.2)
    '0.3'
    """
    if isinstance(value, list):  # SQuAD has the same answer of several readers
        return ", ".join(dict.fromkeys(map(as_text, value)))
    if isinstance(value, float):  # Arrow makes 2.0 of 2 beside 0.5
        value = None if value != value else f"{value:.15g}"
    return "" if value is None else str(value).strip()
