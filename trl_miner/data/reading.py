"""Read data sets: local files as they are written, others by `datasets`.

`datasets` would make dates of text, and floats of large numbers: a gold must stay as it is.
"""

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.errors import first_line
from ..common.network import not_found, not_loaded
from ..common.text import decode
from ..runs.files import bounded_memory

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[str, Any]
SHEETS = (".xlsx", ".xls", ".ods")
TEXT_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")
SUFFIXES = (*TEXT_SUFFIXES, *SHEETS, ".parquet")
_WESTERN_SIGNS = {*"€£¥§°²³µ«»“”„‚‘’–—…¿¡½¼¾×÷±·©®™†\xa0"}
# Of what spreadsheets and editors write; of all that there are, a short text fits too many.
ENCODINGS = "cp1252 gb18030 big5 shift_jis euc_kr cp1251".split()


def load_data_set(
    name: str,
    config: str | None = None,
    revision: str | None = None,
    *,
    streaming: bool | None = False,
) -> Any:
    """Return a data set by split: of a file, which has the split train, a folder, or the Hub.

    A folder has the splits that `datasets` finds in it, and text files are read as `read_file`
    reads them.

    Raises:
        ValueError: It cannot be loaded, or a file has no rows.
    """
    from datasets import load_dataset

    path = Path(name)
    if path.suffix.lower() in SUFFIXES and not path.exists():
        raise ValueError(not_found("File", path))
    try:
        # which has types of its own, and may be large
        if path.suffix.lower() == ".parquet" and path.is_file():
            with bounded_memory(path):
                return load_dataset("parquet", data_files=name, streaming=streaming)
        files = {"train": [name]} if path.is_file() else _text_files(path, config)
        if not files:
            return load_dataset(name, config, revision=revision, streaming=streaming)
    except Exception as error:  # the loaders of `datasets` may raise anything
        why = error
        while isinstance(why.__cause__, Exception):
            why = why.__cause__
        raise ValueError(not_loaded("data set", name, why, revision)) from error
    splits = {split: _data_set(paths) for split, paths in files.items()}
    return {
        split: data.to_iterable_dataset() if streaming else data for split, data in splits.items()
    }


def _text_files(folder: Path, config: str | None) -> dict[str, list[str]]:
    """Return the files of a folder by split, where all are text; else none."""
    from datasets import load_dataset_builder

    by_split = (
        load_dataset_builder(str(folder), config).config.data_files or {} if folder.is_dir() else {}
    )
    suffixes = {Path(file).suffix.lower() for files in by_split.values() for file in files}
    return (
        {str(split): list(files) for split, files in by_split.items()}
        if suffixes <= {*TEXT_SUFFIXES, *SHEETS}
        else {}
    )


def _data_set(files: Sequence[str]) -> Any:
    """Return the rows of text files as a data set."""
    from datasets import Dataset

    rows = [row for file in files for row in read_file(Path(file))]
    columns = dict.fromkeys(column for row in rows for column in row)  # a row may lack some
    values = {column: [row.get(column) for row in rows] for column in columns}
    try:
        return Dataset.from_dict(values, on_mixed_types="use_json")
    except (
        ValueError,
        TypeError,
        OverflowError,
        RecursionError,
    ) as error:  # numbers that Arrow does not have, half characters, lists in lists in lists
        fault = f"{', '.join(files)} cannot be read: {first_line(error)}"
        raise ValueError(f"{fault}. Write large numbers as text.") from error


def describe_file(path: str | Path) -> str:
    """Return how a file is read, in words: its encoding, and what separates its cells."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in SHEETS:
        import pandas

        first, *others = pandas.ExcelFile(path, engine="calamine").sheet_names
        return f"sheet {first!r}" + f", without {len(others)} others" * bool(others)
    if suffix not in TEXT_SUFFIXES:
        return suffix.removeprefix(".")
    text, encoding = _decoded(path.read_bytes())
    if suffix not in (".csv", ".tsv"):
        return f"{suffix.removeprefix('.')} in {encoding}"
    mark = _separator(text, suffix)
    return f"cells separated by {'tabs' if mark == chr(9) else mark}, in {encoding}"


def find_files(path: Path, split: str = "") -> list[Path]:
    """Return the data files of a path: itself, or those in a folder; if some are named after the
    split, only these."""
    if path.is_file():
        return [path]
    files = sorted(
        file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()
    )
    if not path.exists():
        raise ValueError(not_found("File", path))
    if not files:
        raise ValueError(f"No data in {path}: it has no file that ends in {', '.join(SUFFIXES)}.")
    name = re.compile(rf"(?<![a-z0-9]){re.escape(split.casefold())}(?![a-z0-9_])")
    of_split = [
        file for file in files if split and name.search(str(file.relative_to(path)).casefold())
    ]
    return of_split or files


def read_file(path: Path) -> list[Row]:
    """Return the rows of a file; those of CSV hold text.

    Raises:
        ValueError: It cannot be read, or has no rows.
    """
    suffix = path.suffix.lower()
    if not path.exists():
        raise ValueError(not_found("File", path))
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{path} is no data file. Convert it to one that ends in {', '.join(SUFFIXES)}."
        )
    try:
        with bounded_memory(path):
            rows = _rows_of(path, suffix)
    # also of JSON and Arrow, and of JSON that is nested without end
    except (ValueError, RecursionError, ImportError) as error:
        raise ValueError(f"{path} cannot be read: {first_line(error)}.") from error
    if not rows:
        raise ValueError(f"{path} has no rows.")
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(
                f"Row {index} of {path} must be an object: got {type(row).__name__}. Correct the"
                " file."
            )
    return rows


def _rows_of(path: Path, suffix: str) -> list[Any]:
    import pandas
    import pyarrow.parquet

    if suffix == ".parquet":
        return list(pyarrow.parquet.read_table(path).to_pylist())
    if suffix in SHEETS:
        options: dict[str, Any] = {"engine": "calamine", "keep_default_na": False}
        frame = pandas.read_excel(path, header=None, dtype=object, **options)
        return _rows_below_header(frame)
    text, _ = _decoded(path.read_bytes())
    if suffix in (".json", ".jsonl"):
        return _read_json(text, is_lines=suffix == ".jsonl")
    # The header is read as a row: pandas would rename a second column of one name, and take a row
    # with more cells than names for one with a label.
    try:
        frame = pandas.read_csv(
            io.StringIO(text, newline=""),
            sep=_separator(text, suffix),
            header=None,
            dtype=str,
            keep_default_na=False,
        )
    except pandas.errors.EmptyDataError:
        return []
    except pandas.errors.ParserError as error:
        why = first_line(error).removeprefix("Error tokenizing data. C error: ")
        raise ValueError(
            f"{why} (a cell with a separator or a quote in it needs quotes)"
        ) from error
    return _rows_below_header(frame)


def _rows_below_header(frame: "DataFrame") -> list[Row]:
    """Return the rows of a table by the names in its first row; columns without a name go."""
    header, *cells = frame.itertuples(index=False, name=None)
    names = ["" if name != name or name is None else str(name).strip() for name in header]
    named = [name for name in names if name]
    if len({*named}) < len(named):
        raise ValueError(f"several columns have one name in {', '.join(named)}")
    rows = [
        {name: _cell(value) for name, value in zip(names, row, strict=True) if name}
        for row in cells
    ]
    return [row for row in rows if any(value not in (None, "") for value in row.values())]


def _cell(value: Any) -> Any:
    """Return a cell as JSON has it: None for one that is missing, a date as text."""
    if value is None or value != value:
        return None
    return value if isinstance(value, (str, int, float, bool)) else str(value)


def _decoded(content: bytes) -> tuple[str, str]:
    """Return the text of a file, and the name of its encoding: UTF-8, or else the most likely."""
    try:
        return decode(content), "UTF-16" if b"\0" in content[:4] else "UTF-8"
    except UnicodeDecodeError:
        from charset_normalizer import from_bytes

        if _is_western(content):
            return content.decode("cp1252"), "cp1252"
        best = from_bytes(content, cp_isolation=ENCODINGS).best()
    if best is None:
        raise ValueError("its encoding is not known: save it as UTF-8")
    return str(best), best.encoding


def _is_western(content: bytes) -> bool:
    """Return whether a text can only be of a Western language: its accents and signs stand alone or
    in pairs, where words of other scripts are runs of bytes above 127."""
    try:
        signs = {sign for sign in content.decode("cp1252") if ord(sign) > 127}
    except UnicodeDecodeError:  # five bytes stand for nothing
        return False
    is_usual = all(sign.isalpha() or sign in _WESTERN_SIGNS for sign in signs)
    return is_usual and not re.search(rb"[\x80-\xff]{3}", content)


def _separator(text: str, suffix: str) -> str:
    """Return what separates the cells of a CSV: what stands most often in its header."""
    header = re.sub('"[^"]*"', "", text.lstrip().partition("\n")[0])
    return "\t" if suffix == ".tsv" else max(",;\t|", key=header.count)


def _read_json(text: str, *, is_lines: bool) -> list[Any]:
    if not is_lines:
        try:
            content = json.loads(text)
        except ValueError:  # lines, under another name
            return _read_json(text, is_lines=True)
        if isinstance(content, dict):  # {"version": 1, "data": [...]}
            lists = [value for value in content.values() if isinstance(value, list)]
            content = lists[0] if len(lists) == 1 else [content]
        return list(content)
    rows = []
    # splitlines would also cut at U+2028 inside a string
    for number, line in enumerate(text.split("\n"), 1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON ({error})") from error
    return rows
