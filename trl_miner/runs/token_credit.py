"""`credit/credit_STEP.parquet` of a run folder: what each token of some rollouts was paid.

The trainer writes one file per recorded step with `log_token_credit: 10`. Each row is a rollout;
the rows of a prompt are adjacent and are one row group.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..common.network import not_found
from ..prompt_kinds import PromptKind
from .files import bounded_memory, write_whole
from .training_record import papers_of, read_run_record

FOLDER = "credit"  # in the run folder
KINDS = tuple(PromptKind)
_ORDER = ("step", "group", "rollout")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Credit:
    """The token records of a run."""

    name: str  # of the run folder
    methods: tuple[str, ...]  # their names, such as ("MINER",); empty: not recorded
    # `pyarrow.Table` of `schema()`, one row per rollout, rows of one prompt adjacent, steps in
    # order
    table: Any
    notes: tuple[str, ...] = ()  # sentences on what is unusual


def schema() -> Any:
    """Return the columns as a `pyarrow.Schema`; other types that can be cast without loss are read,
    too."""
    import pyarrow as pa

    numbers = ("reward", "verifier_reward", "grpo_advantage", "advantage", "nll")
    lists = ("old_logps", "weights", "advantages_before", "advantages")
    return pa.schema(
        [
            *((name, pa.int32()) for name in ("step", "group", "rollout")),
            *((name, pa.string()) for name in ("kind", "prompt", "completion")),
            *((name, pa.float32()) for name in numbers),
            ("length", pa.int32()),
            ("token_ids", pa.list_(pa.int32())),
            ("tokens", pa.list_(pa.string())),
            *((name, pa.list_(pa.float32())) for name in lists),
        ]
    )


def write_credit(output_dir: str | Path, table: Any, step: int, num_generations: int) -> None:
    """Write `credit/credit_STEP.parquet` in `output_dir`, a table of `schema()` with a row group
    for each prompt."""
    import pyarrow.parquet as pq

    path = Path(output_dir) / FOLDER / f"credit_{step:05d}.parquet"
    file = io.BytesIO()
    pq.write_table(
        table, file, compression="zstd", row_group_size=num_generations, write_page_checksum=True
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, [file.getvalue()])


def read_credit(run: str | Path, *, quiet: bool = True) -> Credit:
    """Return all token records of a run. Progress is shown unless `quiet`.

    Raises:
        FileNotFoundError: There is none.
        ValueError: One is damaged, or no token record.
    """
    import pyarrow as pa

    from ..common.progress import track

    run = Path(run)
    paths = sorted(
        (run / FOLDER).glob("credit_*.parquet"), key=lambda path: (len(path.name), path.name)
    )
    if not paths:
        raise FileNotFoundError(
            f"No recorded tokens in {run}: it has no credit/credit_STEP.parquet. Give the output_dir"
            " of a run that was trained with `log_token_credit: 10`, or one of plain TRL with"
            " log_completions=True."
            if run.exists()
            else not_found("Run folder", run)
        )
    tables = [_read_record(path) for path in track(paths, "reading", unit="files", quiet=quiet)]
    return Credit(
        name=run.resolve().name,
        methods=tuple(label for label, _ in papers_of(read_run_record(run))),
        table=pa.concat_tables(tables).sort_by([(key, "ascending") for key in _ORDER]),
    )


def _read_record(path: Path) -> Any:
    """Return the table of a file with the types of `schema()`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with bounded_memory(path):
            table = pq.read_table(path, page_checksum_verification=True)
            return table.select(schema().names).cast(schema())
    except (KeyError, ValueError, OSError, pa.ArrowException) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"{path} must be a whole token record: {problem}. Move it out of credit/."
        ) from error


def groups_of(table: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return (P,) where each prompt's rows begin in a table, and (P,) how many they are."""
    keys = np.stack([table["step"].to_numpy(), table["group"].to_numpy()])
    first = np.flatnonzero(np.any(np.diff(keys, axis=1, prepend=keys[:, :1] - 1), axis=0))
    return first, np.diff(first, append=table.num_rows)


def token_counts(table: Any) -> np.ndarray:
    """Return (N,) the number of tokens of each rollout of a table, masked ones included."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.list_value_length(table["token_ids"]), 0).to_numpy().astype(np.int64)


class TokenTexts:
    """The text of each token as it appears in a completion, so that all of them together are its
    text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor has one
        self._known: dict[int, str] = {}

    def whole(self, token_ids: Sequence[int]) -> str:
        """Return the text of a completion, without special tokens."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return one text per token; a character whose bytes several tokens share goes to the last
        of them."""
        texts = [self._piece(token_id) for token_id in token_ids]
        start = 0
        for place, text in enumerate(texts):
            if _REPLACEMENT not in text:
                start = place + 1
                continue
            together = self._decode(token_ids[start : place + 1])
            if _REPLACEMENT not in together:
                texts[start : place + 1] = [""] * (place - start) + [together]
                start = place + 1
        return texts

    def _piece(self, token_id: int) -> str:
        """Decode one token, as the second of two: alone, a SentencePiece tokenizer drops the space
        before a word."""
        if token_id not in self._known:
            alone, twice = self._decode([token_id]), self._decode([token_id, token_id])
            self._known[token_id] = twice[len(alone) :] if twice.startswith(alone) else alone
        return self._known[token_id]

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False))
