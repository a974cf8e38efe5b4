"""Reading and writing the files of run folders: whole files, JSON objects, Parquet tables, locks."""

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

LOCK = ".lock"
# The version of all formats of these folders, which `training.json` and `benchmark.json` state as "format". Raise it
# whenever readers of this version could no longer read what is written. Files of 0.1.0 state none, which means 1.
FORMAT = 1
ADVICE = "Restore it, or leave its folder out."


def number(value: Any) -> float | None:
    """Return a finite number as a float; None for anything else that JSON may hold, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def write_whole(path: Path, content: str | Iterable[bytes]) -> None:
    """Write a file so that it is complete or unchanged, even if the process dies or the disk is full."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.writelines([content.encode("utf-8")] if isinstance(content, str) else content)
    os.replace(temporary, path)


def write_json(path: Path, content: Any, *, indent: int | None = 2, **options: Any) -> None:
    """Write a JSON file, complete or not at all."""
    write_whole(path, json.dumps(content, indent=indent, **options) + "\n")


def read_object(path: Path, advice: str = ADVICE) -> dict[str, Any]:
    """Read a file with one JSON object; errors name the file and the line, and end with `advice`."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. {advice}")
    try:
        return _parse_object(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} must be JSON: {error}. {advice}") from error


def read_optional(path: Path, notes: list[str] | None = None) -> dict[str, Any]:
    """Read a JSON object that may be missing; a broken one is an error, or, with `notes`, a sentence in them."""
    if not path.is_file():
        return {}
    try:
        return read_object(path)
    except ValueError as error:
        if notes is None:
            raise
        notes.append(f"{path.name} could not be read and is left out ({error.__cause__}).")
        return {}


def read_lines(path: Path, advice: str = ADVICE) -> list[tuple[int, dict[str, Any]]]:
    """Read a file with one JSON object per line: the number of each line that is not empty, from 1, and its object."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. {advice}")
    objects = []
    # split on "\n" alone: a text inside an object may hold the other characters that end a line
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if line.strip():
            try:
                objects.append((number, _parse_object(line)))
            except ValueError as error:
                raise ValueError(
                    f"{path} must hold a JSON object in each line: line {number} is cut off or none ({error}). "
                    f"{advice}"
                ) from error
    return objects


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> tuple[Any, str | None]:
    """Read the whole row groups of a Parquet file, and a sentence on what was lost.

    The table is None where the file cannot be opened. Of `columns`, those that the file lacks are left out.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = f"{path.parent.name}/{path.name}"
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        return None, f"{name} cannot be read and is left out: {_why(path, error)}."
    schema = file.schema_arrow
    wanted = schema.names if columns is None else [column for column in columns if column in schema.names]
    with contextlib.suppress(pa.ArrowException, OSError, ValueError):
        return file.read(wanted), None
    tables, reason = [], ""
    for index in range(file.num_row_groups):
        try:
            tables.append(file.read_row_group(index, wanted))
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = reason or _one_line(error)
    table = pa.concat_tables([pa.schema([schema.field(c) for c in wanted], schema.metadata).empty_table(), *tables])
    return table, f"{name} is damaged: {table.num_rows} of its {file.metadata.num_rows} rows were read ({reason})."


@contextlib.contextmanager
def lock_folder(folder: Path, message: str) -> Iterator[Any]:
    """Hold a folder's lock until all processes that have the file open have ended. `message` is the error's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK, "a+", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise ValueError(
            f"--output must be a folder that can be written: {folder} cannot ({error}). Give another one."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = f"process {file.read().strip() or 'unknown'}"
            raise ValueError(message.format(folder=folder, holder=holder)) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield file


def _parse_object(text: str | bytes) -> dict[str, Any]:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError(f"it must hold an object, and holds a {type(content).__name__}")
    if isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise ValueError(f"it is of format {content['format']}, and this version of trl_miner reads up to {FORMAT}")
    return content


def _why(path: Path, error: Exception) -> str:
    """Say why pyarrow cannot open a file; mostly its end is missing."""
    try:
        has_footer = path.read_bytes()[-4:] == b"PAR1"
    except OSError:
        has_footer = True
    return _one_line(error) if has_footer else "it has no footer, so it was cut off or is still being written"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
