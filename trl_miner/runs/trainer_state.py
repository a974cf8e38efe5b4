"""`trainer_state.json` of a run folder and of each checkpoint: the training log, and how far the run got.

transformers writes it.
"""

import json
import math
import re
from array import array
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from pydantic_core import from_json

from .files import check_place, parse_object, read_object
from .records import State, number

if TYPE_CHECKING:
    import numpy as np

FILE = "trainer_state.json"
RECORD = TypeAdapter(State)
BETWEEN = " \t\r\n,"  # entries
_LOG, _BETWEEN = re.compile(r'"log_history"\s*:\s*\['), re.compile(f"[{BETWEEN}]*")
_CHUNK = 2**22  # characters that are read at a time


def last_step(folder: Path) -> int | None:
    """Return the optimizer steps done by a run folder or checkpoint; None: its state is missing or damaged."""
    try:
        step = number(read_object(folder / FILE).get("global_step"))
    except (OSError, ValueError):
        return None
    return None if step is None else int(step)


def run_state(checkpoint: Path) -> dict[str, Any]:
    """Return what the trainer keeps of a run in a checkpoint; empty: the checkpoint is of another trainer."""
    state = read_object(checkpoint / FILE, record=RECORD)
    kept: dict[str, Any] = (state.get("stateful_callbacks") or {}).get("RunState", {}).get("attributes", {})
    return kept


def read_log(path: Path) -> tuple[dict[str, Any], dict[str, "np.ndarray"]]:
    """Return the state in a file without its log, and the columns of the log: see `columns_of`.

    Entries are read one at a time, since a long run's file is larger than its numbers are.

    Raises:
        ValueError: The file cannot be read, or holds something else.
    """
    check_place(path)
    log = _Columns()
    try:
        rest = _split(path, log.add)
    except RecursionError as error:
        raise ValueError("it must be JSON: it is nested too deeply") from error
    state: dict[str, Any] = parse_object(rest.encode(), RECORD)
    return state, log.arrays()


def columns_of(logs: Iterable[Mapping[str, Any]]) -> dict[str, "np.ndarray"]:
    """Return training logs as columns: by metric (n, 2) optimizer steps, ascending, and values; NaN where a value is
    no finite number. Of logs of the same step the last value counts. Logs without a reward are no training logs."""
    columns = _Columns()
    for log in logs:
        columns.add(log)
    return columns.arrays()


class _Columns:
    """The training logs of a file, as a table of numbers for each set of keys that a log has."""

    def __init__(self) -> None:
        self._num_logs = 0
        self._tables: dict[tuple[str, ...], array[float]] = {}

    def add(self, log: Any) -> None:
        """Add an entry of the log, if it is one of training."""
        if not isinstance(log, Mapping) or "reward" not in log or number(log.get("step")) is None:
            return
        values: Any = log.values()
        if not {*map(type, values)} <= {int, float}:
            values = [math.nan if (known := number(value)) is None else known for value in values]
        table = self._tables.setdefault(tuple(log), array("d"))
        try:
            table.extend((self._num_logs, *values))
        except OverflowError:  # JSON's whole numbers have no largest one
            del table[len(table) // (len(log) + 1) * (len(log) + 1) :]
            table.extend((self._num_logs, *(math.nan if number(value) is None else value for value in values)))
        self._num_logs += 1

    def arrays(self) -> dict[str, "np.ndarray"]:
        import numpy as np

        parts: dict[str, list[Any]] = {}
        for keys, table in self._tables.items():
            rows = np.frombuffer(table).reshape(-1, len(keys) + 1)
            for place, key in enumerate(keys, start=1):
                parts.setdefault(key, []).append(rows[:, [0, 1 + keys.index("step"), place]])
        found = {}
        for key, tables in parts.items():
            order, steps, values = np.concatenate(tables).T
            chosen = np.lexsort((order, steps))
            points = np.stack([steps, values], axis=1)[chosen]
            points[~np.isfinite(points)] = np.nan
            found[key] = points[np.append(points[1:, 0] != points[:-1, 0], True)]
        return found


def _split(path: Path, take: Callable[[Any], None]) -> str:
    """Give `take` each entry of the log in turn, and return the text of the file with an empty log."""
    decode, text, place = json.JSONDecoder().raw_decode, "", 0
    with open(path, encoding="utf-8-sig") as file:
        while (start := _LOG.search(text)) is None:
            if not (chunk := file.read(_CHUNK)):
                return text
            text += chunk
        head, place = text[: start.end()], start.end()
        while True:
            place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]  # it matches nothing, too
            if text[place : place + 1] == "]":
                return head + text[place:] + file.read()
            try:
                entry, place = decode(text, place)
            except json.JSONDecodeError:
                if not (chunk := file.read(_CHUNK)):
                    raise
                text = text[place:] + chunk
                place = _take_whole(text, take)
            else:
                take(entry)


def _take_whole(text: str, take: Callable[[Any], None]) -> int:
    """Give `take` the entries that begin a text, all up to the last that is whole, and return where these end.

    That is several times faster than one by one. 0: they are to be read one by one, at the end of the log for example.
    """
    end = text.rfind("}") + 1
    try:
        entries = from_json(f"[{text[:end].lstrip(BETWEEN)}]")
    except ValueError:
        return 0
    for entry in entries:
        take(entry)
    return end
