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
from pydantic import TypeAdapter

from ..prompt_kinds import PromptKind
from .checkpoints import list_checkpoints
from .completions import FOLDER as COMPLETIONS
from .files import parse_object, read_parquet, write_whole
from .records import BatchMeta
from .trainer_state import FILE as STATE
from .training_record import RECORD, papers_of, read_run_record

logger = logging.getLogger(__name__)

FOLDER = "credit"  # in the run folder
KINDS = tuple(PromptKind)
METADATA = b"trl_miner"
_META = TypeAdapter(BatchMeta)
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
_TOKEN_COLUMNS = tuple(name for name, kind in COLUMNS.items() if kind.startswith("list"))
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
    """
    from ..progress import track

    run = Path(run)
    tables, metas, notes, names = [], {}, [], []
    for path in track(_credit_files(run), "reading", unit="files", quiet=quiet):
        name = f"{path.parent.name}/{path.name}"
        table, meta, own_notes = _read_file(path, name)
        notes += own_notes
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


def recorded_prompts(run: str | Path) -> list[tuple[int, int, str]]:
    """Return step, group and text of every prompt that the token records of a run hold; none: it has no records."""
    found: dict[tuple[int, int], str] = {}
    wanted = ["step", "group", "prompt"]
    for path in (Path(run) / FOLDER).glob("credit_*.parquet"):
        table, _ = read_parquet(path, wanted)
        for row in [] if table is None or set(table.column_names) != {*wanted} else table.to_pylist():
            if isinstance(row["step"], int) and isinstance(row["group"], int):
                found[row["step"], row["group"]] = str(row["prompt"] or "")
    return [(*place, found[place]) for place in sorted(found)]


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


def _credit_files(run: Path) -> list[Path]:
    if not run.is_dir():
        raise FileNotFoundError(f"{run} is no folder. Give the output_dir of a training run.")
    paths = sorted((run / FOLDER).glob("credit_*.parquet"), key=lambda path: (len(path.name), path.name))
    if paths:
        return paths
    signs = (STATE, RECORD, COMPLETIONS, FOLDER)
    if not any((run / sign).exists() for sign in signs) and not list_checkpoints(run):
        raise FileNotFoundError(
            f"{run} is no run: it holds none of {', '.join(signs)}, nor a checkpoint. Give the output_dir of a "
            f"training run."
        )
    raise FileNotFoundError(f"{run} holds no credit/credit_*.parquet. Train with log_token_credit: 10.")


def _methods(run: Path, metas: Mapping[int, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of the methods, of the run record or else of the token records."""
    record = read_run_record(run)
    names = (record or {}).get("methods")
    if not names:
        names = [name for meta in metas.values() for name in str(meta.get("estimator") or "").split("+") if name]
    return tuple(label for label, _ in papers_of(names, record))


def _read_file(path: Path, name: str) -> tuple[Any | None, dict[str, Any] | None, list[str]]:
    """Return the table, the metadata and notes; no table: nothing in the file can be read."""
    table, note = read_parquet(path, [*COLUMNS])
    notes = [note] if note else []
    if table is None:
        return None, None, notes
    if missing := [column for column in COLUMNS if column not in table.column_names]:
        raise ValueError(
            f"{name} must have the columns of a token record: {', '.join(missing)} missing. Move it out of credit/, "
            f"or train again with log_token_credit: 10."
        )
    try:
        meta = parse_object((table.schema.metadata or {})[METADATA], _META)
    except (KeyError, ValueError):
        meta = None
        notes.append(f"{name} says nothing of its batch: scale and tau of its step are not known.")
    return _checked(table, name), meta, notes


def _checked(table: Any, name: str) -> Any:
    """Return the table with the types of COLUMNS; its lists must agree."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        table = table.select([*COLUMNS]).cast(schema())
    except pa.ArrowException as error:
        raise ValueError(
            f"{name} must have the types of a token record: {' '.join(str(error).split()).rstrip('.')}. "
            f"Move it out of credit/."
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
    """Join tables: steps in order, rows of a prompt adjacent, whatever the order in the files."""
    import pyarrow as pa

    table = pa.concat_tables(tables)
    order = np.lexsort([table[name].to_numpy() for name in ("rollout", "group", "step")])
    return table if np.array_equal(order, np.arange(len(order))) else table.take(pa.array(order))
