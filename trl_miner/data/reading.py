"""Read data sets: for training by `datasets`, and the rows of local files as they are."""

import csv
import io
import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import first_line

Row = dict[str, Any]
# the formats of data files, by what `datasets` calls their readers
BUILDERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}


def load_data_set(
    name: str, config: str | None = None, revision: str | None = None, *, streaming: bool | None = False
) -> Any:
    """Return a data set by split: of a file, a folder, or the Hub.

    Raises:
        ValueError: It cannot be loaded, or a file has no rows.
    """
    from datasets import load_dataset

    try:
        return load_dataset(**_arguments(name), name=config, revision=revision, streaming=streaming)
    except Exception as error:  # the loaders of `datasets` may raise anything
        if _builder(name) and not read_file(Path(name)):
            raise ValueError(f"dataset_name must have rows: {name} has none. Add some.") from error
        why = error
        while isinstance(why.__cause__, Exception):
            why = why.__cause__
        raise ValueError(
            f"dataset_name must be a Hub id, a file, a folder, an embedded world such as trl_miner/arithmetic, or "
            f"reasoning_gym/FAMILY: {name} could not be loaded ({first_line(why)}). Correct it, or make the data set "
            f"with `trl-miner data`."
        ) from error


def _arguments(name: str) -> dict[str, Any]:
    """Return the arguments of `datasets.load_dataset` for a data set: for a file, those of its format."""
    builder = _builder(name)
    if builder is None:
        return {"path": name}
    if builder != "csv":
        return {"path": builder, "data_files": name}
    with open(name, encoding="utf-8", errors="replace", newline="") as file:
        mark = _separator(file.readline())
        file.seek(0)
        header, first = ([*islice(csv.reader(file, delimiter=mark), 2)] + [[], []])[:2]
    if len(first) > len(header):  # pandas would take the first cells for names of the rows
        raise ValueError(
            f"its first row has {len(first)} cells under {len(header)} names: cells with {mark!r} in them need quotes"
        )
    return {"path": builder, "data_files": name, "sep": mark}


def _builder(name: str) -> str | None:
    """Return what `datasets` calls the format of a local file; None: it is none."""
    path = Path(name)
    return BUILDERS.get(path.suffix.lower()) if path.is_file() else None


def find_files(path: Path, split: str = "") -> list[Path]:
    """Return the data files of a path: itself, or those in a folder; if some are named after the split, only these."""
    if path.is_file():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in BUILDERS and file.is_file())
    if not files:
        raise ValueError(
            f"A local data set must be a file, or a folder with {', '.join(BUILDERS)} files: got {path}. Correct it."
        )
    name = re.compile(rf"(?<![a-z0-9_]){re.escape(split.casefold())}(?![a-z0-9_])")
    of_split = [file for file in files if split and name.search(str(file.relative_to(path)).casefold())]
    return of_split or files


def read_file(path: Path) -> list[Row]:
    """Read all rows of one file.

    Raises:
        ValueError: It cannot be read; the message says why.
    """
    suffix = path.suffix.lower()
    if suffix not in BUILDERS:
        raise ValueError(f"A data file must end in {', '.join(BUILDERS)}: got {path}. Convert it to one of these.")
    try:
        if suffix == ".parquet":
            return _read_parquet(path)
        text = path.read_bytes().decode("utf-8-sig")
        if suffix in (".csv", ".tsv"):
            lines = io.StringIO(text, newline="")  # "": line ends inside quotes stay
            return list(csv.DictReader(lines, delimiter=_separator(text.partition("\n")[0])))
        rows = json.loads(text) if suffix == ".json" and text.lstrip()[:1] == "[" else _json_lines(text)
    except (ValueError, csv.Error) as error:  # ValueError: also of UTF-8, JSON and Arrow
        raise ValueError(f"{path} must be a file that can be read: {error}. Correct it.") from error
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"Row {index} of {path} must be an object: got {type(row).__name__}. Correct the file.")
    return rows


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow.parquet

    rows: list[Row] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def _json_lines(text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would also cut at U+2028 inside a string
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON object ({error})") from error
    return rows


def _separator(header: str) -> str:
    """Return what separates the columns of a CSV file, by its first line: spreadsheets also write `;` and tabs."""
    return next((mark for mark in ",;\t" if mark in header), ",")
