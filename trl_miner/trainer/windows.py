"""Whole groups out of TRL's queue of samples, window by window, and the advantages of their tokens in its batches."""

import logging
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ..heartbeat import beat
from ..launching.server import LOGPROBS_FLAG

logger = logging.getLogger(__name__)


class AsyncRollout:
    """A rollout, which is one row of training data, or several where its conversation forks."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        first, is_own = rows[0], [row["completion_mask"][1:].astype(bool) for row in rows]  # nothing predicts token 0
        self.advantage: float = first["advantage"]
        self.reward: float = first["metrics"]["reward"]
        self.rewards: dict[str, float] = {
            name.removeprefix("rewards/"): value
            for name, value in first["metrics"].items()
            if name.startswith("rewards/")
        }
        self.lengths = [int(mask.sum()) for mask in is_own]
        self.tokens = np.concatenate([row["input_ids"][1:][own] for row, own in zip(rows, is_own, strict=True)])
        logps = np.concatenate([row["old_log_probs"][1:][own] for row, own in zip(rows, is_own, strict=True)])
        if not np.isfinite(logps).all():
            raise ValueError(
                f"The server must give a log-prob for every token: got {int((~np.isfinite(logps)).sum())} of "
                f"{len(logps)} that are none. Start vLLM with {LOGPROBS_FLAG}."
            )
        self.logps = torch.as_tensor(logps, dtype=torch.float32)
        self.prompt_ids = first["input_ids"][: int(np.argmax(first["completion_mask"]))]
        self.prompt_key = zlib.crc32(self.prompt_ids.astype("<i8").tobytes())

    def record(self, advantages: torch.Tensor) -> dict[str, Any]:
        """Return what a record of token credit says of the rollout: the tokens that are trained."""
        own = {"token_ids": self.tokens, "counts": np.ones(len(self.tokens), bool), "old_logps": self.logps.numpy()}
        return {"prompt_ids": self.prompt_ids.tolist(), **own, "advantages": advantages.float().numpy()}


class Windows(torch.utils.data.IterableDataset):
    """The samples that TRL takes from its queue, a window of whole groups at a time, with advantages of tokens.

    A group that is not whole, because TRL drops a stale part of it, is dropped. Rows of a group follow each other.
    """

    def __init__(self, trainer: Any, samples: Any, window: int) -> None:
        self._trainer, self._samples, self._window = trainer, samples, window
        self._queue = samples.queue = _RememberingQueue(samples.queue)
        self._open: dict[int, list[tuple[dict[str, Any], Any]]] = {}  # group -> rows, as TRL has yielded and got them
        self._num_seen = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        ready: list[AsyncRollout] = []
        for sample in self._samples:
            ready += self._take(sample)
            while len(ready) >= self._window:
                rollouts, ready = ready[: self._window], ready[self._window :]
                advantages = self._trainer.estimate_window(rollouts, self._num_seen)
                self._num_seen += len(rollouts)
                for rollout, of_tokens in zip(rollouts, advantages, strict=True):
                    for row, own in zip(rollout.rows, of_tokens.split(rollout.lengths), strict=True):
                        yield {**row, "token_advantages": own}

    def _take(self, sample: dict[str, Any]) -> list[AsyncRollout]:
        """Add a sample to its group; return the rollouts of the groups before it, which have come to their end: until
        then nobody knows into how many rows a conversation forks."""
        group, size = sample["group_id"], self._trainer.args.num_generations
        whole: list[AsyncRollout] = []
        for one in [other for other in self._open if other != group]:
            rows, num_got = self._open.pop(one), self._queue.num_got.pop(one)
            if num_got != len(rows):
                self._drop(one, f"{len(rows)} of {num_got} rows, and the others were stale")
                continue
            rollouts = [AsyncRollout(own) for own in _rows_of_rollouts(rows, forks=num_got != size)]
            if len(rollouts) == size:
                whole += rollouts
            else:
                self._drop(one, f"{len(rollouts)} of {size} rollouts in {num_got} rows")
        self._open.setdefault(group, []).append((sample, self._queue.last))
        return whole

    def _drop(self, group: int, what: str) -> None:
        logger.warning(f"Dropping prompt group {group}, which is not whole: it has {what}.")
        self._trainer._metrics["train"]["groups/incomplete_total"].append(1.0)


class _RememberingQueue:
    """A queue that remembers what it gave last: TRL's samples leave out completion and version.

    `num_got` counts the rows of each group that have not come to an end, those that TRL drops among them.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.last: Any = None
        self.num_got: Counter[int] = Counter()

    def get(self, *args: Any, **kwargs: Any) -> Any:
        self.last = self._queue.get(*args, **kwargs)
        beat()
        self.num_got[self.last.group_id] += 1
        return self.last

    def qsize(self) -> int:
        return int(self._queue.qsize())


def _rows_of_rollouts(rows: list[tuple[dict[str, Any], Any]], *, forks: bool) -> list[list[dict[str, Any]]]:
    """Return the rows of each rollout of a group. Those of a forked conversation follow each other and share it; a
    row that comes again begins another rollout that says the same."""
    found: list[list[dict[str, Any]]] = []
    conversation: Any = None
    for row, source in rows:
        is_next = forks and found and source.completion == conversation
        if is_next and not any(np.array_equal(row["input_ids"], other["input_ids"]) for other in found[-1]):
            found[-1].append(row)
        else:
            found.append([row])
        conversation = source.completion
    return found


class TokenAdvantages:
    """TRL's collator, whose packed rows have the advantages of the tokens in place of those of the samples."""

    def __init__(self, collate: Callable[[list[Any]], dict[str, Any]]) -> None:
        self._collate, self.num_batches = collate, 0

    def __call__(self, examples: list[Any]) -> dict[str, Any]:
        batch = self._collate(examples)
        (rows,) = examples
        for i, row in enumerate(rows):
            own = [sample["token_advantages"] for sample in row.samples]
            expected = [
                torch.full_like(one, sample["advantage"]) for one, sample in zip(own, row.samples, strict=True)
            ]
            is_loss = batch["token_index"][i] >= 0
            if not torch.equal(batch["advantages"][i][is_loss], torch.cat(expected)):
                raise RuntimeError(
                    "TRL packs the advantages of a row in another order than trl_miner knows, sample by sample: "
                    "nothing was trained on it. Use the version of TRL that trl_miner's setup.cfg names."
                )
            batch["advantages"][i][is_loss] = torch.cat(own).to(batch["advantages"])
        self.num_batches += 1
        return batch
