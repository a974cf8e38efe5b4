"""The rows of a generation batch, read when TRL generates for them.

TRL draws the rows of the whole generation batch anew for each of its micro-batches and looks at the first draw alone.
With hundreds of micro-batches, reading the others took longer than anything else around the model.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from datasets import Dataset as Rows
from torch.utils.data import Dataset


class PromptRows(Dataset[Any]):
    """A training set whose batches are read late."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]

    def __getitems__(self, indices: Sequence[int]) -> "LateRows":
        return LateRows(self._rows, indices)


class LateRows:
    """The rows of a batch, as the list that TRL's data loader would hand out; the first use reads them."""

    def __init__(self, rows: Rows, indices: Sequence[int]) -> None:
        self._from, self._indices = rows, indices

    @cached_property
    def _read(self) -> list[dict[str, Any]]:
        return self._from.__getitems__(self._indices)

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._read)

    def __getitem__(self, place: Any) -> Any:
        return self._read[place]

    def __eq__(self, other: object) -> bool:
        return other == self._read

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __contains__(self, name: object) -> bool:
        """transformers looks for tensors by name in every batch; rows have none."""
        return False
