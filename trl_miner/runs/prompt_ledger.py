"""`prompt_ledger.jsonl` of a run folder: how every prompt came out, each time that the run
generated for it.

The trainer always writes it, a line per generation batch.

{"step": 1, "rollouts": 8, "prompts": [0, 1], "correct": [8, 3], "scored": [8, 8], "spread": [0.0, 1.0],
 "new": [["3a41...", "How many ..."], ["77c0...", "What is ..."]], "dropped": [1]}

Prompts are numbered as they first appear: `new` has the key and the shortened text of each. `step`
is the first optimizer step that trains on the batch, and `rollouts` how many each prompt had. Of a
prompt's rollouts `correct` are right, `scored` have a reward of the verifier; `spread` is the
largest of their total rewards less the smallest, null where there is none. `dropped` are places in
`prompts` that dynamic sampling generated and did not train on, or where adaptive sampling generated
more rollouts of a prompt of the batch; `skipped` are the prompts that `prompt_selection` left out.
Prompts with the same text are one prompt. Every process of a run would write the same, so one does.
A checkpoint counts the generation batches before it, so that a resumed run goes on behind as many
lines.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter

from ..prompt_kinds import PromptKind
from ..trainer.prompt_keys import IMAGES, row_text
from .files import parse_object, write_whole
from .records import Count, Number, Positive

if TYPE_CHECKING:
    from pandas import DataFrame

FILE = "prompt_ledger.jsonl"
_ROWS_AT_ONCE = 10_000
_OPTIONAL = ("new", "dropped", "skipped")  # only there where they hold something


@dataclass(frozen=True)
class Batch:
    """One line: a generation batch."""

    step: Count
    rollouts: Positive
    prompts: Sequence[Count]
    correct: Sequence[Count]
    scored: Sequence[Count]
    spread: Sequence[Number | None]
    new: Sequence[Annotated[Sequence[str], Field(min_length=2, max_length=2)]] = ()  # key and text
    dropped: Sequence[Count] = ()
    skipped: Sequence[Count] = ()

    def line(self) -> bytes:
        """Return the line of the file."""
        content = {
            name: value for name, value in vars(self).items() if value or name not in _OPTIONAL
        }
        return (json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n").encode(
            "utf-8", errors="replace"
        )


_BATCH = TypeAdapter(Batch)


@dataclass(frozen=True)
class Ledger:
    """What a run's file says, up to its last whole line."""

    batches: Sequence[Batch]
    keys: Sequence[str]  # of every prompt, by its number
    texts: Sequence[str]
    notes: Sequence[str] = field(default=())  # sentences on what could not be read


def digest_of(rows: Any) -> str:
    """Return a hash of a data set's rows, golds and all, but for images and what else would have to
    be decoded."""
    digest = hashlib.blake2b(digest_size=8)
    kept = [
        name
        for name, kind in rows.features.items()
        if name not in IMAGES and not hasattr(kind, "decode_example")
    ]
    for part in rows.select_columns(kept).with_format("arrow").iter(_ROWS_AT_ONCE):
        for row in part.to_pylist():
            digest.update(row_text(row).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def read_ledger(run: str | Path) -> Ledger | None:
    """Return what a run folder's ledger says, up to the first line that cannot be read; None: there
    is none."""
    path = Path(run) / FILE
    return parse_ledger(path.read_bytes()) if path.is_file() else None


def parse_ledger(content: bytes) -> Ledger:
    """Return what the content of a file says, up to the first line that cannot be read."""
    batches: list[Batch] = []
    prompts: list[Sequence[str]] = []  # key and text of each
    lines = content.split(b"\n")
    notes = [f"The last line of {FILE} was cut off and is left out."] if lines.pop() else []
    for place, line in enumerate(lines, start=1):
        try:
            batch = parse_object(line, _BATCH)
        except ValueError as error:
            notes = [f"{FILE} is damaged and was read up to line {place - 1}: {error}."]
            break
        batches.append(batch)
        prompts += batch.new
    return Ledger(batches, [key for key, _ in prompts], [text for _, text in prompts], notes)


def read_beginning(folder: str | Path, num_batches: int) -> list[bytes]:
    """Return the first lines of a run folder's ledger, those of so many generation batches.

    Raises:
        ValueError: It has no such beginning, which the message says as a phrase.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    lines = path.read_bytes().splitlines(keepends=True)[:num_batches]
    found = len(parse_ledger(b"".join(lines)).batches)
    if found < num_batches:
        raise ValueError(
            f"{path} is damaged: it has {found} of the {num_batches} batches before the checkpoint"
        )
    return lines


def begin_ledger(folder: str | Path, lines: Sequence[bytes]) -> None:
    """Have the file of a run hold these lines, those before a checkpoint."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_whole(Path(folder) / FILE, lines)


def append_batch(folder: str | Path, batch: Batch) -> None:
    """Add a line to the file of a run."""
    with open(Path(folder) / FILE, "ab") as file:
        file.write(batch.line())


def visits_of(ledger: Ledger) -> "DataFrame":
    """Return how the prompts of a ledger came out: a row for each visit of a prompt that could be
    judged, in order.

    Columns: "prompt", by number; "step" (of the optimizer) of its batch; "rollouts", and how many
        were "correct"; its
    "kind" in words. A prompt is mixed where some rollouts are right and some wrong. One that is not, with rollouts
    that the verifier left without a reward, is unjudged, as for `groups/unscorable`.
    """
    import numpy as np
    import pandas as pd

    rows = [
        (prompt, batch.step, correct, scored, batch.rollouts)
        for batch in ledger.batches
        for prompt, correct, scored in zip(batch.prompts, batch.correct, batch.scored, strict=True)
    ]
    visits = pd.DataFrame(
        rows, columns=["prompt", "step", "correct", "scored", "rollouts"], dtype=np.int64
    )
    is_mixed = (visits["correct"] > 0) & (visits["correct"] < visits["scored"])
    kinds = [PromptKind.MIXED.words, PromptKind.ALL_RIGHT.words]
    visits["kind"] = np.select([is_mixed, visits["correct"] > 0], kinds, PromptKind.ALL_WRONG.words)
    return visits[is_mixed | (visits["scored"] == visits["rollouts"])].drop(columns="scored")
