"""Read data sets: text files and spreadsheets as they are written, others by `datasets`.

`datasets` would make dates of text and floats of large numbers: a reference answer must stay as it
is. Rows are written to an Arrow file as they are read, so that a large file needs little memory.
"""

import csv
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .settings import DataArguments

if TYPE_CHECKING:
    from datasets import Dataset, Features

Row = dict[str, Any]
TABLES, SHEETS, JSON = (".csv", ".tsv"), (".xlsx", ".xls", ".ods"), (".json", ".jsonl")
SUFFIXES = (*TABLES, *JSON, ".parquet", *SHEETS)
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_WESTERN_SIGNS = {*"€£¥§°²³µ«»“”„‚‘’–—…¿¡½¼¾×÷±·©®™†\xa0"}


def load_splits(args: DataArguments) -> dict[str, "Dataset"]:
    """Return the rows of `dataset_name` by split: of a file, a folder, or the Hub.

    Raises:
        ValueError: It cannot be read, or has no rows.
    """
    from datasets import load_dataset, load_dataset_builder, load_from_disk

    name, path = str(args.dataset_name), Path(str(args.dataset_name)).expanduser()
    if path.is_file():
        return {args.dataset_train_split: read_files([path], args.sheet)}
    if path.suffix.lower() in SUFFIXES or name[:1] in (".", "/", "~"):
        if not path.exists():
            raise ValueError(f"There is no file {name}.")
    try:
        if not path.is_dir():
            return dict(load_dataset(name, args.dataset_config, revision=args.dataset_revision))
        if path.joinpath("dataset_dict.json").is_file():
            return dict(load_from_disk(name))
        if path.joinpath("state.json").is_file():
            return {args.dataset_train_split: load_from_disk(name)}
        by_split = load_dataset_builder(name, args.dataset_config).config.data_files or {}
    except Exception as error:  # the loaders of `datasets` may raise anything
        raise ValueError(_not_loaded(name, error)) from error
    return {
        str(split): read_files([*map(Path, files)], args.sheet) for split, files in by_split.items()
    }


def _not_loaded(name: str, error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    hint = " Name one with --dataset_config." if "onfig name is missing" in reason else ""
    return f"The data set {name} cannot be loaded: {reason}.{hint}"


def read_files(paths: list[Path], sheet: str | None = None) -> "Dataset":
    """Return the rows of files of one kind; those of tables hold text.

    Raises:
        ValueError: One cannot be read, or there are no rows.
    """
    from datasets import Dataset

    for path in paths:
        if path.suffix.lower() not in SUFFIXES:
            raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}.")
    names = ", ".join(map(str, paths))
    try:
        if all(path.suffix.lower() == ".parquet" for path in paths):
            rows = Dataset.from_parquet([*map(str, paths)])
        else:
            features = _features_of(row for path in paths for row in rows_of(path, sheet))
            rows = write_rows((row for path in paths for row in rows_of(path, sheet)), features)
    except (OSError, ValueError, RecursionError, ImportError) as error:
        raise ValueError(f"{names} cannot be read: {' '.join(str(error).split())}") from error
    if not len(rows):
        raise ValueError(f"{names} has no rows.")
    return rows


def rows_of(path: Path, sheet: str | None = None) -> Iterator[Row]:
    """Yield the rows of a text file or a spreadsheet, without those that are empty."""
    suffix = path.suffix.lower()
    if suffix in JSON:
        yield from _json_rows(path)
    elif suffix == ".parquet":
        from datasets import Dataset

        yield from Dataset.from_parquet(str(path))
    else:
        cells = _sheet_cells(path, sheet) if suffix in SHEETS else _table_cells(path)
        yield from _below_header(cells)


# Tables


def _below_header(lines: Iterable[list[str]]) -> Iterator[Row]:
    """Yield rows by the names in the first line; columns without a name go."""
    filled = (cells for cells in lines if any(cells))
    header = [name.strip() for name in next(filled, [])]
    named = [name for name in header if name]
    if len({*named}) < len(named):
        raise ValueError(f"several columns have one name in {', '.join(named)}.")
    for cells in filled:
        yield {name: cell for name, cell in zip(header, cells, strict=False) if name}


def _table_cells(path: Path) -> Iterator[list[str]]:
    encoding = find_encoding(path)
    separator = find_separator(path, encoding)
    count = 0
    with open(path, encoding=encoding, newline="") as file:
        lines = csv.reader(file, delimiter=separator, strict=True)
        try:
            for cells in lines:
                count = count or len(cells)
                if len(cells) > count and any(cells[count:]):
                    raise csv.Error(f"{count} cells are expected, there are {len(cells)}")
                yield cells
        except csv.Error as error:
            raise ValueError(
                f"line {lines.line_num}: {error} (a cell with a separator or a quote in it needs"
                " quotes)."
            ) from error


def find_separator(path: Path, encoding: str) -> str:
    """Return what separates the cells of a table: what cuts the first lines into as many cells
    each, and most; else what stands most often in the header."""

    def cut(separator: str) -> int:
        with open(path, encoding=encoding, newline="") as file:
            try:
                counts = {len(cells) for cells in islice(csv.reader(file, delimiter=separator), 20)}
            except csv.Error:
                return 0
        counts -= {0}
        return counts.pop() if len(counts) == 1 else 0

    best = max(SEPARATORS, key=cut)
    if cut(best) > 1:
        return best
    with open(path, encoding=encoding) as file:
        return max(SEPARATORS, key=re.sub('"[^"]*"', "", file.readline()).count)


def _sheet_cells(path: Path, sheet: str | None) -> Iterator[list[str]]:
    import pandas

    options: Any = {"engine": "calamine", "header": None, "dtype": object, "keep_default_na": False}
    sheets = pandas.read_excel(path, sheet_name=None, **options)
    filled = [name for name, cells in sheets.items() if len(cells) and sheet in (None, name)]
    if len(filled) != 1:
        raise ValueError(f"its sheets are {', '.join(map(repr, sheets))}. Name one with --sheet.")
    for cells in sheets[filled[0]].itertuples(index=False, name=None):
        yield [as_text(None if cell != cell else cell) for cell in cells]


def as_text(value: Any) -> str:
    """Return a scalar as text, stripped: "" for None, "27" for 27.0.

    >>> as_text(0.1 + 0.2)
    '0.3'
    """
    if isinstance(value, float):  # Arrow makes 2.0 of 2 beside 0.5, and ujson 0.47...97 of 0.48
        return f"{value:.15g}"
    return "" if value is None else str(value).strip()


# JSON


def _json_rows(path: Path) -> Iterator[Row]:
    with open(path, encoding=find_encoding(path)) as file:
        rows = _json_lines(file) if path.suffix.lower() == ".jsonl" else _json_values(file.read())
        for place, row in enumerate(rows):
            if not isinstance(row, dict):
                raise ValueError(f"row {place} must be an object: got {str(row)[:80]}.")
            yield row


def _json_values(text: str) -> Iterable[Any]:
    try:
        return _rows_of_value(_parse(text))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # lines, under another name
            return _json_lines(text.split("\n"))
        raise


def _json_lines(lines: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                yield _parse(line)
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON ({error}).") from error


def _parse(text: str) -> Any:
    """Read JSON; numbers that Arrow does not have stay text."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 19 else digits)


def _rows_of_value(value: Any) -> list[Any]:
    """Return the rows of a list, of {column: [...]}, of {column: {index: ...}}, {id: row}, or of
    the only list in an object."""
    if not isinstance(value, dict):
        return value if isinstance(value, list) else [value]
    lists = [each for each in value.values() if isinstance(each, list)]
    inner = [each for each in value.values() if isinstance(each, dict)]
    if len(lists) == 1 and lists[0] and all(isinstance(each, dict) for each in lists[0]):
        return lists[0]
    if value and len(lists) == len(value):
        if len({*map(len, lists)}) > 1:
            sizes = ", ".join(f"{name} {len(each)}" for name, each in value.items())
            raise ValueError(f"its columns must have one length: got {sizes}.")
        return [dict(zip(value, cells, strict=True)) for cells in zip(*lists, strict=True)]
    if value and len(inner) == len(value):
        if not all(key.isdecimal() for each in inner for key in each):
            return inner  # rows by their ids
        return [{name: value[name].get(index) for name in value} for index in inner[0]]
    return [value]


# Encodings


def find_encoding(path: Path) -> str:
    """Return the encoding of a text file: UTF-8 or UTF-16, or else the most likely.

    Raises:
        ValueError: None is likely.
    """
    with open(path, "rb") as file:
        start = file.read(4)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    try:
        with open(path, encoding="utf-8-sig") as text:
            while text.read(1 << 20):
                pass
        return "utf-8-sig"
    except UnicodeDecodeError:
        return _guess_encoding(path.read_bytes())


def _guess_encoding(content: bytes) -> str:
    text = content.decode("utf-8", "replace")
    bad, signs = text.count("\ufffd"), sum(ord(sign) > 127 for sign in text)
    if signs > 2 * bad:
        line = text.partition("\ufffd")[0].count("\n") + 1
        raise ValueError(f"it is UTF-8 but for some signs, the first in line {line}: correct them.")
    if _is_western(content):
        return "cp1252"
    from charset_normalizer import from_bytes

    # Of what spreadsheets and editors write; of all that there are, a short text fits too many.
    likely = ["cp1252", "gb18030", "big5", "shift_jis", "euc_kr", "cp1251"]
    best = from_bytes(content, cp_isolation=likely).best()
    if best is None:
        raise ValueError("its encoding is not known: save it as UTF-8.")
    return str(best.encoding)


def _is_western(content: bytes) -> bool:
    """Return whether a text can only be of a Western language: its accents and signs stand alone or
    in pairs, where words of other scripts are runs of bytes above 127."""
    try:
        signs = {sign for sign in content.decode("cp1252") if ord(sign) > 127}
    except UnicodeDecodeError:  # five bytes stand for nothing
        return False
    is_usual = all(sign.isalpha() or sign in _WESTERN_SIGNS for sign in signs)
    return is_usual and not re.search(rb"[\x80-\xff]{3}", content)


def describe_file(path: Path) -> str:
    """Return how a file is read, in words: its encoding, and what separates its cells."""
    suffix = path.suffix.lower()
    if suffix not in (*TABLES, *JSON):
        return suffix[1:]
    encoding = find_encoding(path)
    name = "UTF-8" if encoding == "utf-8-sig" else encoding
    cells = f"cells between {SEPARATORS[find_separator(path, encoding)]}, "
    return (cells if suffix in TABLES else "") + f"in {name}"


# Rows in Arrow files


def _features_of(rows: Iterable[Row]) -> "Features":
    """Return the types of columns: numbers where all are, text where some are, else JSON."""
    from datasets import Features, Json, Value

    kinds: dict[str, set[type]] = {}
    for row in rows:
        for name, value in row.items():
            kinds.setdefault(name, set()).add(type(value))
    one: dict[frozenset[type], Any] = {
        frozenset({bool}): Value("bool"),
        frozenset({int}): Value("int64"),
        frozenset({float}): Value("float64"),
        frozenset({int, float}): Value("float64"),
    }
    return Features(
        {
            name: Json()
            if each & {list, dict}
            else one.get(frozenset(each - {type(None)}), Value("string"))
            for name, each in kinds.items()
        }
    )


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="trl_miner_data_")


def write_rows(rows: Iterable[Row], features: "Features") -> "Dataset":
    """Return rows as a data set of given types, in a file that goes when the process ends."""
    import pyarrow as pa
    from datasets import Dataset, Json, Value

    path = Path(_folder().name, f"{uuid4().hex}.arrow")
    write: dict[str, Any] = {name: lambda value: value for name in features}
    for name, feature in features.items():
        if isinstance(feature, Json):
            write[name] = lambda value: None if value is None else json.dumps(value)
        elif feature == Value("string"):
            write[name] = lambda value: (
                value if value is None or isinstance(value, str) else as_text(value)
            )
    schema, left = features.arrow_schema, iter(rows)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        while some := [*islice(left, 1000)]:
            columns = {name: [each(row.get(name)) for row in some] for name, each in write.items()}
            stream.write_batch(pa.RecordBatch.from_pydict(columns, schema=schema))
    return Dataset.from_file(str(path))
