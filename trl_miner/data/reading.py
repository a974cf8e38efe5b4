"""Read data sets: local text files as they are written, others by `datasets`.

`datasets` would make dates of text, and floats of large numbers: a gold must stay as it is.
"""

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import first_line
from ..text import decode

Row = dict[str, Any]
TEXT_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")
SUFFIXES = (*TEXT_SUFFIXES, ".parquet")


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
    try:
        # which has types of its own, and may be large
        if path.suffix.lower() == ".parquet" and path.is_file():
            return load_dataset("parquet", data_files=name, streaming=streaming)
        files = {"train": [name]} if path.is_file() else _text_files(path, config)
        if not files:
            return load_dataset(name, config, revision=revision, streaming=streaming)
    except Exception as error:  # the loaders of `datasets` may raise anything
        why = error
        while isinstance(why.__cause__, Exception):
            why = why.__cause__
        raise ValueError(
            "dataset_name must be a Hub id, a file, a folder, an embedded world such as"
            f" trl_miner/arithmetic, or reasoning_gym/FAMILY: {name} could not be loaded"
            f" ({first_line(why)})."
        ) from error
    splits = {split: _data_set(own) for split, own in files.items()}
    return {
        split: data.to_iterable_dataset() if streaming else data for split, data in splits.items()
    }


def _text_files(folder: Path, config: str | None) -> dict[str, list[str]]:
    """Return the files of a folder by split, where all are text; else none."""
    from datasets import load_dataset_builder

    found = (
        load_dataset_builder(str(folder), config).config.data_files or {} if folder.is_dir() else {}
    )
    suffixes = {Path(file).suffix.lower() for files in found.values() for file in files}
    return (
        {str(split): list(files) for split, files in found.items()}
        if suffixes <= {*TEXT_SUFFIXES}
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
        found = f"{', '.join(files)} cannot be read: {first_line(error)}"
        raise ValueError(f"{found}. Write large numbers as text.") from error


def find_files(path: Path, split: str = "") -> list[Path]:
    """Return the data files of a path: itself, or those in a folder; if some are named after the
    split, only these."""
    if path.is_file():
        return [path]
    files = sorted(
        file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()
    )
    if not files:
        raise ValueError(
            f"{path} is neither a file nor a folder with {', '.join(SUFFIXES)} files. Correct it."
        )
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
    if suffix not in SUFFIXES:
        raise ValueError(
            f"A data file must end in {', '.join(SUFFIXES)}: got {path}. Convert it to one of"
            " these."
        )
    try:
        rows = (
            _read_parquet(path) if suffix == ".parquet" else _read_text(suffix, path.read_bytes())
        )
    except (ValueError, RecursionError) as error:  # also of UTF-8, JSON and Arrow
        raise ValueError(f"{path} cannot be read: {error}.") from error
    if not rows:
        raise ValueError(f"{path} has no rows.")
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(
                f"Row {index} of {path} must be an object: got {type(row).__name__}. Correct the"
                " file."
            )
        if None in row:
            raise ValueError(
                f"Row {index} of {path} has more cells than there are names: quote cells with"
                " separators."
            )
    return rows


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow.parquet

    rows: list[Row] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def _read_text(suffix: str, content: bytes) -> list[Any]:
    text = decode(content)
    if suffix in (".csv", ".tsv"):
        header = re.sub('"[^"]*"', "", text.partition("\n")[0])
        # spreadsheets also write `;` and tabs
        mark = "\t" if suffix == ".tsv" else max(",;\t", key=header.count)
        # strict: a quote that is not closed would else take in all rows below; "": line ends inside
        # quotes stay
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # of all of Python
        try:
            cells = list(reader)
        except csv.Error as error:
            hint = "a cell that begins with a quote ends with one, and has two for each within"
            raise ValueError(f"below line {reader.line_num}: {error} ({hint})") from error
        names = [name for name in reader.fieldnames or () if name]
        if len({*names}) < len(names):
            raise ValueError(f"several columns have one name in {', '.join(names)}")
        return cells
    if suffix == ".json" and text.lstrip()[:1] == "[":
        return list(json.loads(text))
    rows = []
    # splitlines would also cut at U+2028 inside a string
    for number, line in enumerate(text.split("\n"), 1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON ({error})") from error
    return rows
