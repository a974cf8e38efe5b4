"""Reading the token records of a run, `credit/credit_00010.parquet`, the damaged ones as far as they go."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = "credit"  # in the run folder
KINDS = ("PH", "HE", "NH")
METADATA = b"trl_miner"
# As pyarrow writes its types; what has another type that can be cast without loss is read too.
COLUMNS = {
    "step": "int32",
    "group": "int32",
    "rollout": "int32",
    "kind": "string",
    "prompt": "string",
    "completion": "string",
    "reward": "float",
    "verifier_reward": "float",
    "grpo_advantage": "float",
    "advantage": "float",
    "nll": "float",
    "length": "int32",
    "token_ids": "list<int32>",
    "tokens": "list<string>",
    "old_logps": "list<float>",
    "weights": "list<float>",
    "advantages_before": "list<float>",
    "advantages": "list<float>",
}
_TOKEN_COLUMNS = tuple(name for name, kind in COLUMNS.items() if kind.startswith("list"))
# A null among floats, as a NaN of its own: numpy and JavaScript keep its bits.
NULL_BITS = 0x7FC0_0001


@dataclass(frozen=True)
class Credit:
    """The token records of a run.

    Attributes:
        name: Of the run folder.
        methods: Names of the methods, such as ("MINER",); empty: not recorded.
        table: `pyarrow.Table`, one row per rollout, rows of one prompt adjacent, steps in order. Columns: COLUMNS.
        metas: Of each step, what the trainer noted about its batch: "scale", "tau_pos", "tau_ref", "lambda_max", ...
        files: Names of the files that were read, relative to the run folder.
        notes: What could not be read, and what is unusual, a sentence each.
    """

    name: str
    methods: tuple[str, ...]
    table: Any
    metas: Mapping[int, Mapping[str, Any]]
    files: tuple[str, ...]
    notes: tuple[str, ...]


def read_credit(run: str | Path, *, quiet: bool = True) -> Credit:
    """Read all token records of a run.

    Args:
        run: Output folder of a training with `log_token_credit: true`.
        quiet: Show no progress.

    Returns:
        `Credit`. A damaged file gives the row groups that can be read, and a note.

    Raises:
        FileNotFoundError: The folder is none, is no run, or has no token records.
        ValueError: A file lacks columns, or its lists disagree; or no file could be read at all.
    """
    from ..progress import track

    run = Path(run)
    paths = _credit_files(run)
    tables, metas, notes, names = [], {}, [], []
    for path in track(paths, "reading", unit="files", quiet=quiet):
        name = f"{path.parent.name}/{path.name}"
        table, meta, found = _read_file(path, name)
        notes += found
        if table is None:
            continue
        tables.append(table)
        names.append(name)
        steps = set(table["step"].to_pylist())
        if meta is not None:
            steps.add(int(meta["step"]))
        metas.update({step: meta or {"step": step} for step in steps})
    if not tables:
        raise ValueError(f"{run} must hold a credit file that can be read: {' '.join(notes)} Train on, or again.")
    return Credit(
        name=run.resolve().name,
        methods=_methods(run, metas),
        table=_in_order(tables),
        metas=dict(sorted(metas.items())),
        files=tuple(names),
        notes=tuple(notes),
    )


def groups_of(table: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where each prompt's rows begin and end.

    Args:
        table: Of `Credit`.

    Returns:
        (P,) first rows and (P,) numbers of rows, of the P prompts.
    """
    keys = np.stack([table["step"].to_numpy(), table["group"].to_numpy()])
    first = np.flatnonzero(np.any(np.diff(keys, axis=1, prepend=keys[:, :1] - 1), axis=0))
    return first, np.diff(first, append=table.num_rows)


def token_counts(table: Any) -> np.ndarray:
    """Tokens of each rollout, those included that do not count.

    Args:
        table: Of a `Credit`.

    Returns:
        (N,) counts.
    """
    import pyarrow.compute as pc

    return pc.fill_null(pc.list_value_length(table["token_ids"]), 0).to_numpy().astype(np.int64)


def token_numbers(table: Any, name: str) -> np.ndarray:
    """One number per token of all rollouts, one after another.

    Args:
        table: Of `Credit`.
        name: "old_logps", "weights", "advantages_before" or "advantages".

    Returns:
        (T,) float32. Where the file has null, or no list, the NaN whose bits are NULL_BITS.
    """
    import pyarrow.compute as pc

    column, counts = table[name].combine_chunks(), token_counts(table)
    numbers = np.full(counts.sum(), NULL_BITS, dtype=np.uint32).view(np.float32)
    values = pc.list_flatten(column)
    found = values.to_numpy(zero_copy_only=False).astype(np.float32)
    found.view(np.uint32)[values.is_null().to_numpy(zero_copy_only=False)] = NULL_BITS
    numbers.view(np.uint32)[np.repeat(has_list(table, name), counts)] = found.view(np.uint32)
    return numbers


def has_list(table: Any, name: str) -> np.ndarray:
    """Whether a rollout has a list at all, or null.

    Args:
        table: Of a `Credit`.
        name: A column of lists.

    Returns:
        (N,) bools.
    """
    return table[name].is_valid().to_numpy()


def _credit_files(run: Path) -> list[Path]:
    if not run.is_dir():
        raise FileNotFoundError(f"{run} is no folder. Give the output_dir of a training run.")
    paths = sorted((run / FOLDER).glob("credit_*.parquet"), key=lambda path: (len(path.name), path.name))
    if paths:
        return paths
    signs = ("trainer_state.json", "training.json", "run.json", "completions", FOLDER)
    if not any((run / sign).exists() for sign in signs) and not any(run.glob("checkpoint-*")):
        raise FileNotFoundError(
            f"{run} is no run: it holds none of {', '.join(signs)}, nor a checkpoint. Give the output_dir of a "
            f"training run."
        )
    raise FileNotFoundError(f"{run} holds no credit/credit_*.parquet. Train with log_token_credit: true.")


def _methods(run: Path, metas: Mapping[int, Mapping[str, Any]]) -> tuple[str, ...]:
    """Of the run record, else of the records themselves."""
    from .training_record import PAPERS, read_run_record

    found = (read_run_record(run) or {}).get("methods")
    if not found:
        found = [name for meta in metas.values() for name in str(meta.get("estimator") or "").split("+") if name]
    return tuple(PAPERS[name][0] if name in PAPERS else name for name in dict.fromkeys(map(str, found)))


def _read_file(path: Path, name: str) -> tuple[Any | None, dict[str, Any] | None, list[str]]:
    """The table, the metadata and notes; no table: nothing in it can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        return None, None, [f"{name} cannot be read, and none of its rollouts is shown: {_why(path, error)}."]
    missing = [column for column in COLUMNS if column not in file.schema_arrow.names]
    if missing:
        raise ValueError(
            f"{name} must have the columns of a token record: {', '.join(missing)} missing. Move it out of credit/, "
            f"or train again with log_token_credit: true."
        )
    meta, notes = _meta(file, name)
    try:
        table = file.read([*COLUMNS])
    except (pa.ArrowException, OSError):
        table, lost = _read_row_groups(file)
        notes.append(f"{name} is damaged: {table.num_rows} of {file.metadata.num_rows} rollouts are shown. {lost}.")
    return _checked(table, name), meta, notes


def _why(path: Path, error: Exception) -> str:
    """What a file that pyarrow does not open lacks, mostly its end."""
    try:
        has_end = path.read_bytes()[-4:] == b"PAR1"
    except OSError:
        has_end = True
    return _one_line(error) if has_end else "it has no footer, for it was cut off or is still being written"


def _read_row_groups(file: Any) -> tuple[Any, str]:
    import pyarrow as pa

    tables, error = [], ""
    for index in range(file.num_row_groups):
        try:
            tables.append(file.read_row_group(index, [*COLUMNS]))
        except (pa.ArrowException, OSError) as caught:
            error = error or _one_line(caught)
    if not tables:
        return pa.schema([file.schema_arrow.field(name) for name in COLUMNS]).empty_table(), error
    return pa.concat_tables(tables), error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _meta(file: Any, name: str) -> tuple[dict[str, Any] | None, list[str]]:
    try:
        meta = json.loads((file.schema_arrow.metadata or {})[METADATA])
        int(meta["step"])
    except (KeyError, TypeError, ValueError):
        return None, [f"{name} says nothing of its batch: scale and tau of its step are not known."]
    return meta, []


def _checked(table: Any, name: str) -> Any:
    """With the types of COLUMNS, and lists that agree."""
    import pyarrow as pa
    import pyarrow.compute as pc

    short = {"int32": pa.int32(), "float": pa.float32(), "string": pa.string()}
    types = {c: pa.list_(short[kind[5:-1]]) if kind.startswith("list") else short[kind] for c, kind in COLUMNS.items()}
    try:
        table = table.select([*COLUMNS]).cast(pa.schema(types))
    except pa.ArrowException as error:
        raise ValueError(
            f"{name} must have the types of a token record: {_one_line(error)}. Move it out of credit/."
        ) from error
    unknown = sorted(set(pc.unique(table["kind"]).to_pylist()) - {*KINDS}, key=str)
    if unknown:
        raise ValueError(f"{name} must have the kinds {', '.join(KINDS)}: got {unknown[0]!r}. Move it out of credit/.")
    counts = token_counts(table)
    for column in _TOKEN_COLUMNS:
        lengths = pc.list_value_length(table[column])
        wrong = np.flatnonzero(pc.fill_null(lengths, 0).to_numpy() != np.where(lengths.is_valid(), counts, 0))
        if len(wrong) or (column == "tokens" and table[column].null_count and counts.sum()):
            row = int(wrong[0]) if len(wrong) else 0
            raise ValueError(
                f"{name} must have one entry of {column} per token: row {row} has {lengths[row]} for {counts[row]} "
                f"tokens. Move it out of credit/."
            )
    return table


def _in_order(tables: Iterable[Any]) -> Any:
    """Rows of one prompt adjacent, in the order of the steps, whatever the files did."""
    import pyarrow as pa

    table = pa.concat_tables(tables)
    order = np.lexsort([table[name].to_numpy() for name in ("rollout", "group", "step")])
    return table if np.array_equal(order, np.arange(len(order))) else table.take(pa.array(order))
