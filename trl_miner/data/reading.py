"""Read the rows of a data set, from the Hub or from local files of the same format."""

import csv
import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..progress import Progress
from ..runs.files import parse

Row = dict[str, Any]
SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".tsv")


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
        files = find_files(Path(local), source.configs, source.split)
        rows = [row for file in files for row in read_file(file)]
        return rows, {"files": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}}


def find_files(path: Path, configs: Sequence[str] = (), split: str = "") -> list[Path]:
    """Return the data files of a path: itself, or those in a folder that belong to the configs and the split.

    A folder may be a copy of a Hub repository. Files or subfolders named after the configs are taken, else all; of
    these, files or subfolders named after the split, else all.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"A local data set must be a file or a folder: got {path}, which does not exist.")
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise ValueError(f"A local data set must hold {', '.join(SUFFIXES)} files: got none in {path}.")
    of_config = {config: [file for file in files if _named_after(file, path, config)] for config in configs}
    missing = [config for config in configs if not of_config[config]]
    if configs and not missing:
        files = [file for config in configs for file in of_config[config]]
    elif len(missing) < len(configs):
        raise ValueError(
            f"A folder with a file per config must have all of {', '.join(configs)}: {path} has none for "
            f"{', '.join(missing)}. Add it, or put all rows into one file."
        )
    return [file for file in files if split and _named_after(file, path, split)] or files


def read_file(path: Path) -> list[Row]:
    """Read all rows of one file; errors name the line."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.read_table(path).to_pylist()
        except pa.ArrowInvalid as error:
            raise ValueError(f"{path} must be a Parquet file: {error}. Write it again.") from error
    if suffix not in SUFFIXES:
        raise ValueError(f"A data file must end in {', '.join(SUFFIXES)}: got {path}. Convert it to one of these.")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"{path} must be a text in UTF-8: line {line} is not. Convert it.") from error
    if suffix in (".csv", ".tsv"):
        lines = io.StringIO(text, newline="")  # "": line ends inside quotes stay
        return [dict(row) for row in csv.DictReader(lines, delimiter=separator(text.partition("\n")[0]))]
    is_lines = suffix == ".jsonl" or text.lstrip()[:1] != "["
    try:
        rows = list(_json_lines(path, text)) if is_lines else parse(content)
    except ValueError as error:
        raise ValueError(f"{path} must be a JSON list of objects: {error}. Correct the file.") from error
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(
                f"Row {index} of {path} must be a JSON object: got {type(row).__name__}. Correct the file."
            )
    return rows


def separator(header: str) -> str:
    """Return what separates the columns of a CSV file, by its first line: spreadsheets also write `;` and tabs."""
    return next((mark for mark in ",;\t" if mark in header), ",")


def _json_lines(path: Path, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would also cut at U+2028 inside a string
        if line.strip():
            try:
                yield parse(line.encode())
            except ValueError as error:
                raise ValueError(f"Line {number} of {path} must be a JSON object: {error}. Correct it.") from error


def _named_after(file: Path, folder: Path, name: str) -> bool:
    name = name.casefold()
    *parents, last = (part.casefold() for part in file.relative_to(folder).with_suffix("").parts)
    return name in parents or re.match(rf"{re.escape(name)}(?![a-z0-9_])", last) is not None


def _read_hub(source: Source, flag: str) -> tuple[list[Row], dict[str, Any]]:
    from datasets import load_dataset

    rows: list[Row] = []
    commit = None
    for config in source.configs or (None,):
        try:
            loaded = load_dataset(source.hub, config, split=source.split, revision=source.revision)
        except (OSError, ValueError) as error:
            # OSErrors: ConnectionError offline and when the Hub does not answer, DatasetNotFoundError for a missing or
            # gated data set, huggingface_hub's own when a download fails. ValueError: an unknown config or split, also
            # where an offline cache holds only another one.
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
