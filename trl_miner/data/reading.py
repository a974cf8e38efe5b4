"""Read the rows of a data set, from the Hub or from local files of the same format."""

import csv
import hashlib
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..progress import Progress

Row = dict[str, Any]
# the formats of data files, by what `datasets` calls their readers
BUILDERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True)
class Source:
    """A data set on the Hub."""

    hub: str  # id
    split: str
    configs: tuple[str, ...] = ()  # read one after another; (): the default one
    revision: str = "main"

    def __str__(self) -> str:
        configs = f", config {' and '.join(self.configs)}" if self.configs else ""
        return f"{self.hub}{configs}, split {self.split}, revision {self.revision}"


def read_rows(source: Source, local: str | Path | None = None, *, flag: str) -> tuple[list[Row], dict[str, Any]]:
    """Read all rows of a data set, and return them with the record of where they came from.

    `local` is a file, or a folder of files, with the same rows; None reads the Hub. `flag` is the option that names a
    local file, for the error message. The record of the Hub has "hub", "configs", "split", "revision" and "commit"
    (None where `datasets` does not give it); that of files is {"files": {name: sha256}}.
    """
    with Progress(f"reading {local or source.hub}", unit="", leave=False):
        if local is None:
            return _read_hub(source, flag)
        files = find_files(Path(local), source.split)
        rows = [row for file in files for row in read_file(file)]
        return rows, {"files": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}}


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
            return list(csv.DictReader(lines, delimiter=separator(text.partition("\n")[0])))
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


def separator(header: str) -> str:
    """Return what separates the columns of a CSV file, by its first line: spreadsheets also write `;` and tabs."""
    return next((mark for mark in ",;\t" if mark in header), ",")


def _read_hub(source: Source, flag: str) -> tuple[list[Row], dict[str, Any]]:
    from datasets import load_dataset

    rows: list[Row] = []
    commit = None
    for config in source.configs or (None,):
        try:
            loaded = load_dataset(source.hub, config, split=source.split, revision=source.revision)
        except (OSError, ValueError) as error:  # the network, and an unknown name, config or split
            kind = ConnectionError if isinstance(error, OSError) else ValueError
            raise kind(
                f"A data set must be on the Hub or in a local file: could not get {source} ({error}). "
                f"Connect to the network once, so that it is cached, or download it elsewhere and pass {flag}."
            ) from error
        rows += loaded.to_list()
        # Keys such as hf://datasets/owner/name@<commit>/data/test.parquet
        match = re.search(r"@([0-9a-f]{40})/", " ".join(loaded.info.download_checksums or {}))
        commit = match[1] if match else commit
    record = {"hub": source.hub, "configs": list(source.configs), "split": source.split}
    return rows, record | {"revision": source.revision, "commit": commit}
