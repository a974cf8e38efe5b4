"""`prompt_selection`: which prompts a generation batch leaves out, by how they came out before.

Decisions alone, without a model. They follow from the lines of the prompt ledger, so that every process, and a resumed
run, makes the same ones. A prompt that is left out is drawn again in the next pass over the data; none is lost.
"""

import hashlib
from collections.abc import Mapping

from ..runs.prompt_ledger import Batch


class Selection:
    """The decisions of one run, by the number of a prompt in the ledger and its key."""

    candidates = 1  # prompts that are drawn for each one that is generated

    def __init__(self, seed: int) -> None:
        self._seed = seed  # of the draws
        self._num_batches = 0

    def observe(self, batch: Batch) -> None:
        """Take a line of the ledger into account."""
        self._num_batches += 1

    def skips(self, number: int, key: str) -> bool:
        """Return whether the next batch skips a prompt, as long as there are others."""
        return False

    def rank(self, number: int | None, key: str) -> float:
        """Return the rank of a candidate, the smallest first; it has no number before it was first generated."""
        return 0.0

    def metrics(self) -> Mapping[str, float]:
        """Return what is logged of the run so far."""
        return {}

    def _digest(self, key: str) -> int:
        """Return 64 bits that depend on the seed, the prompt and the batch."""
        text = f"{self._seed} {key} {self._num_batches}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
