"""`credit/credit_STEP.parquet` of a run folder: what each token of some rollouts was paid.

The trainer writes one file per recorded step with `log_token_credit: 10`. Each row is a rollout; the rows of a
prompt are adjacent and are one row group. The file's metadata says what holds of the whole batch.
"""

import io
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..prompt_kinds import PromptKind
from .files import read_parquet, write_whole
from .training_record import papers_of, read_run_record

logger = logging.getLogger(__name__)

FOLDER = "credit"  # in the run folder
KINDS = tuple(PromptKind)
METADATA = b"trl_miner"
# As pyarrow writes its types; other types that can be cast without loss are read too.
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
# A null among floats, as a NaN of its own: numpy and JavaScript keep its bits.
NULL_BITS = 0x7FC0_0001


@dataclass(frozen=True)
class Credit:
    """The token records of a run."""

    name: str  # of the run folder
    methods: tuple[str, ...]  # their names, such as ("MINER",); empty: not recorded
    table: Any  # `pyarrow.Table`, one row per rollout, rows of one prompt adjacent, steps in order; columns: COLUMNS
    metas: Mapping[int, Mapping[str, Any]]  # of each step's batch: "scale", "tau_pos", "tau_ref", "lambda_max", ...
    files: tuple[str, ...]  # that were read, relative to the run folder
    notes: tuple[str, ...]  # sentences on what could not be read, and what is unusual


def schema() -> Any:
    """Return the columns as a `pyarrow.Schema`."""
    import pyarrow as pa

    types = {"int32": pa.int32(), "float": pa.float32(), "string": pa.string()}
    return pa.schema(
        {name: pa.list_(types[kind[5:-1]]) if kind[:5] == "list<" else types[kind] for name, kind in COLUMNS.items()}
    )


def write_credit(output_dir: str | Path, table: Any, about: Mapping[str, Any]) -> Path | None:
    """Write `credit/credit_STEP.parquet` in `output_dir`, of a table of `schema()`. Return its path.

    Each prompt is a row group. `about` ("step", "num_generations", "scale", ...) holds of the whole batch and becomes
    the file's metadata. If the disk does not take the file, it warns and returns None: the training goes on.
    """
    import pyarrow.parquet as pq

    table = table.cast(schema()).replace_schema_metadata({METADATA: json.dumps(about, allow_nan=False).encode()})
    path = Path(output_dir) / FOLDER / f"credit_{about['step']:05d}.parquet"
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", row_group_size=about["num_generations"], write_page_checksum=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [file.getvalue()])
    except OSError as error:
        logger.warning(f"log_token_credit: {path} could not be written: {error}. The training goes on without it.")
        return None
    return path


def read_credit(run: str | Path, *, quiet: bool = True) -> Credit:
    """Return all token records of a run that can be read; a damaged file is left out with a note.

    Progress is shown unless `quiet`.

    Raises:
        FileNotFoundError: There is none.
        ValueError: None can be read, or one is no token record.
    """
    from ..progress import track

    run = Path(run)
    paths = sorted((run / FOLDER).glob("credit_*.parquet"), key=lambda path: (len(path.name), path.name))
    if not paths:
        raise FileNotFoundError(
            f"{run} holds no credit/credit_*.parquet. Give the output_dir of a run that was trained with "
            f"log_token_credit: 10."
        )
    tables, metas, notes = {}, {}, []
    for path in track(paths, "reading", unit="files", quiet=quiet):
        name = f"{path.parent.name}/{path.name}"
        table, note = read_parquet(path, [*COLUMNS])
        if table is None:
            notes.append(str(note))
        else:
            meta = _read_meta(table, name)
            tables[name], metas[int(meta["step"])] = _with_types(table, name), meta
    if not tables:
        raise ValueError(f"{run} must hold a credit file that can be read: {' '.join(notes)} Train on, or again.")
    record = read_run_record(run) or {}
    return Credit(
        name=run.resolve().name,
        methods=tuple(label for label, _ in papers_of(record.get("methods") or (), record)),
        table=_in_order(tables.values()),
        metas=dict(sorted(metas.items())),
        files=tuple(tables),
        notes=tuple(notes),
    )


def _read_meta(table: Any, name: str) -> dict[str, Any]:
    meta = json.loads((table.schema.metadata or {}).get(METADATA, b"{}"))
    if "step" not in meta:
        raise ValueError(f"{name} must say of which step it is: it is no token record. Move it out of credit/.")
    return dict(meta)


def _with_types(table: Any, name: str) -> Any:
    """Return the table with the types of COLUMNS."""
    import pyarrow as pa

    try:
        return table.select([*COLUMNS]).cast(schema())
    except (KeyError, pa.ArrowException) as error:
        raise ValueError(
            f"{name} must have the columns of a token record: {' '.join(str(error).split()).rstrip('.')}. Move it out "
            f"of credit/, or train again with log_token_credit: 10."
        ) from error


def _in_order(tables: Iterable[Any]) -> Any:
    """Join tables: steps in order, rows of a prompt adjacent, whatever the order in the files."""
    import pyarrow as pa

    table = pa.concat_tables(tables)
    order = np.lexsort([table[name].to_numpy() for name in ("rollout", "group", "step")])
    return table if np.array_equal(order, np.arange(len(order))) else table.take(pa.array(order))


def groups_of(table: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return (P,) where each prompt's rows begin in a table, and (P,) how many they are."""
    keys = np.stack([table["step"].to_numpy(), table["group"].to_numpy()])
    first = np.flatnonzero(np.any(np.diff(keys, axis=1, prepend=keys[:, :1] - 1), axis=0))
    return first, np.diff(first, append=table.num_rows)


def token_counts(table: Any) -> np.ndarray:
    """Return (N,) the number of tokens of each rollout of a table, masked ones included."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.list_value_length(table["token_ids"]), 0).to_numpy().astype(np.int64)


def token_numbers(table: Any, name: str) -> np.ndarray:
    """Return (T,) float32, the numbers in the table's column `name`, one per token; NaN of NULL_BITS for none."""
    import pyarrow.compute as pc

    column, counts = table[name].combine_chunks(), token_counts(table)
    numbers = np.full(counts.sum(), NULL_BITS, dtype=np.uint32).view(np.float32)
    values = pc.list_flatten(column)
    listed = values.to_numpy(zero_copy_only=False).astype(np.float32)
    listed.view(np.uint32)[values.is_null().to_numpy(zero_copy_only=False)] = NULL_BITS
    numbers.view(np.uint32)[np.repeat(has_list(table, name), counts)] = listed.view(np.uint32)
    return numbers


def has_list(table: Any, name: str) -> np.ndarray:
    """Return (N,) which rollouts have a list in the table's column `name`, and not null."""
    return table[name].is_valid().to_numpy()
