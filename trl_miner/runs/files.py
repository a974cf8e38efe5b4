"""Reading and writing the files of run folders: whole files, JSON and YAML."""

import contextlib
import gzip
import json
import math
import os
import resource
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter, ValidationError

from ..common.redaction import redact
from ..common.text import decode
from .checksums import sync
from .records import OBJECT

ADVICE = "Restore it, or delete it."
_LONGEST_YAML = 10**6
_MOST_MEMORY = 4 * 2**30


def write_whole(path: Path, content: str | Iterable[bytes]) -> None:
    """Write a file so that it is complete or unchanged, even if the process dies, the disk is full,
    or the power is lost."""
    temporary = path.with_name(f".{path.name}.tmp")
    # a stranger's folder may hold a link there, which would lead elsewhere
    temporary.unlink(missing_ok=True)
    with open(temporary, "xb") as file:
        file.writelines([content.encode("utf-8")] if isinstance(content, str) else content)
    sync([temporary])
    os.replace(temporary, path)


def write_json(path: Path, content: Any, *, indent: int | None = 2, **options: Any) -> None:
    """Write a JSON file, complete or not at all, without secrets."""
    write_whole(path, json.dumps(redact(content), indent=indent, **options) + "\n")


def parse_object(text: bytes, record: TypeAdapter[Any] = OBJECT) -> Any:
    """Return the record that a JSON text holds. Raise ValueError, which says in one line what is
    wrong."""
    try:
        return record.validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, found["loc"]))
    raise ValueError(
        f"{place}{': ' if place else ''}{found['msg']}, got {ascii(found['input']):.40}"
    )


def read_object(
    path: Path, advice: str = ADVICE, record: TypeAdapter[Any] = OBJECT
) -> dict[str, Any]:
    """Read a file with one record in JSON; errors name the file and the place, and end with
    `advice`."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. {advice}")
    try:
        content: dict[str, Any] = parse_object(path.read_bytes(), record)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: {error}. {advice}") from error
    return content


def read_optional(path: Path, record: TypeAdapter[Any] = OBJECT) -> dict[str, Any]:
    """Read a record; empty: there is no such file."""
    return read_object(path, record=record) if path.is_file() else {}


def read_lines(
    path: Path, advice: str = ADVICE, record: TypeAdapter[Any] = OBJECT
) -> list[tuple[int, Any]]:
    """Read a file with a record in JSON per line: the number of each line that is not empty, and
    its record.

    One whose name ends in .gz is unpacked.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. {advice}")
    records = []
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            for line_number, line in enumerate(file, start=1):
                if line.strip():
                    try:
                        records.append((line_number, parse_object(line, record)))
                    except ValueError as error:
                        raise ValueError(
                            f"{path}, line {line_number}: {error}. {advice}"
                        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be packed by gzip: {error}. {advice}") from error
    return records


@contextlib.contextmanager
def bounded_memory(path: Path) -> Iterator[None]:
    """Let the reading of a file take 4 GiB at most, where the system has such limits: a few MB of
    Parquet may hold as much as fills a machine.

    Raises:
        ValueError: It takes more.
    """
    kind = resource.RLIMIT_DATA
    before = resource.getrlimit(kind)
    allowed = psutil.Process().memory_info().vms + _MOST_MEMORY
    if before[0] != resource.RLIM_INFINITY:
        allowed = min(allowed, before[0])
    resource.setrlimit(kind, (allowed, before[1]))
    try:
        yield
    except MemoryError:
        raise ValueError(
            f"{path} must fit into {_MOST_MEMORY / 2**30:g} GiB of memory: its"
            f" {path.stat().st_size} bytes unpack to more. Divide it."
        ) from None
    finally:
        resource.setrlimit(kind, before)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the settings in a YAML file; errors name the file and the line."""
    try:
        content = parse_yaml(decode(path.read_bytes()))
    except ValueError as error:
        raise ValueError(f"{path} is not valid YAML: {error}. Correct it.") from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} has no settings: it is {'empty' if content is None else 'no mapping'}. Write a"
            " setting on each line, as in `learning_rate: 1e-6`."
        )
    return content


def parse_yaml(text: str) -> Any:
    """Return what a YAML text holds.

    Raises:
        ValueError: It is no YAML, a key is there twice, or it is longer than settings are, also by
            aliases that repeat what they stand for. The message is one line.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_document(self, node: Any) -> Any:
            if _length_of(node, {}) > _LONGEST_YAML:
                raise ValueError(f"it holds over {_LONGEST_YAML} characters with its aliases")
            return super().construct_document(node)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names: set[str] = set()
            for key in (
                key
                for key, _ in node.value
                if isinstance(key, yaml.ScalarNode) and key.value != "<<"
            ):
                if key.value in names:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key.value!a} is there twice", problem_mark=key.start_mark
                    )
                names.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        if len(text) > _LONGEST_YAML:
            raise ValueError(f"it holds {len(text)} characters, more than {_LONGEST_YAML}")
        return yaml.load(text, Loader)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f": line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise ValueError(f"{_one_line(getattr(error, 'problem', None) or error)}{place}") from error


def _length_of(node: Any, known: dict[int, float]) -> float:
    """Return the characters of a node of YAML, each alias written out; of one that holds itself
    they have no end."""
    if isinstance(node.value, str):
        return 1 + len(node.value)
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = [part for item in node.value for part in (item if type(item) is tuple else [item])]
        known[id(node)] = 1 + sum(_length_of(part, known) for part in parts)
    return known[id(node)]


def _one_line(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".")
