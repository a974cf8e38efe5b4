"""Whole groups out of TRL's queue of samples, window by window, and the advantages of their tokens
in its batches.

A rollout is one row of training data, or several: a conversation forks into rows where its chat
template changes what was said in earlier turns. All of them have the rollout's reward.
"""

import contextlib
import logging
import queue
import threading
import zlib
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import torch

from ..common.heartbeat import beat
from ..launching.server import LOGPROBS_FLAG
from ..trainer.trl_asynchronous import (
    DataCollatorForRollout,
    RolloutQueueDataset,
    RolloutSample,
    TreeRow,
)

logger = logging.getLogger(__name__)
ROLLOUT = "rollout"  # of its group, in the metrics of a row: which rollout it is of


class AsyncRollout:
    """A rollout as TRL takes it from its queue: its rows of training data."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.advantage: float = rows[0]["advantage"]
        metrics = rows[0]["metrics"]
        self.reward: float = metrics["reward"]
        self.rewards: dict[str, float] = {
            name.removeprefix("rewards/"): value
            for name, value in metrics.items()
            if name.startswith("rewards/")
        }
        # nothing predicts token 0
        are_own = [row["completion_mask"][1:].astype(bool) for row in rows]
        self._counts = [int(is_own.sum()) for is_own in are_own]
        self.tokens = _joined(rows, "input_ids", are_own)
        logps = _joined(rows, "old_log_probs", are_own)
        if not np.isfinite(logps).all():
            raise ValueError(
                "The server must give a log-prob for every token: got"
                f" {int((~np.isfinite(logps)).sum())} of {len(logps)} that are none. Start vLLM"
                f" with {LOGPROBS_FLAG}."
            )
        self.logps = torch.as_tensor(logps, dtype=torch.float32)
        first = rows[0]
        self.prompt_ids = first["input_ids"][: int(np.argmax(first["completion_mask"]))]
        self.prompt_key = zlib.crc32(self.prompt_ids.astype("<i8").tobytes())

    def with_advantages(self, advantages: torch.Tensor) -> Iterator[dict[str, Any]]:
        """Yield its rows, each with the advantages of its own tokens."""
        for row, of_row in zip(self.rows, advantages.split(self._counts), strict=True):
            yield {**row, "token_advantages": of_row}

    def record(self, advantages: torch.Tensor) -> dict[str, Any]:
        """Return what a record of token credit says of the rollout: the tokens that are trained."""
        return {
            "prompt_ids": self.prompt_ids.tolist(),
            "token_ids": self.tokens,
            "counts": np.ones(len(self.tokens), bool),
            "old_logps": self.logps.numpy(),
            "advantages": advantages.float().numpy(),
        }


def _joined(rows: list[dict[str, Any]], name: str, are_own: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(
        [row[name][1:][is_own] for row, is_own in zip(rows, are_own, strict=True)]
    )


class Taken:
    """TRL's queue of samples, which remembers what was taken out of it.

    TRL drops stale samples without a word to anyone; here they can be seen. The queue of another
    process is read in a thread: a process that is stopped or hangs while it writes a long sample
    would otherwise hold the reader, too, with its time limit and all.
    """

    def __init__(self, samples: Any, *, of_another_process: bool) -> None:
        self._samples, self._source = samples, samples
        self.taken: list[RolloutSample] = []
        if of_another_process:
            self._samples = queue.Queue(maxsize=1)
            threading.Thread(target=self._move, daemon=True).start()

    def _move(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # the queue is closed
            while True:
                self._samples.put(self._source.get())

    def get(self, *args: Any, **kwargs: Any) -> RolloutSample:
        """Return the next sample, as a queue does, and remember it."""
        sample = self._samples.get(*args, **kwargs)
        self.taken.append(sample)
        return sample

    def qsize(self) -> int:
        """Return how many samples are waiting."""
        waiting = 0 if self._samples is self._source else self._samples.qsize()
        return int(self._source.qsize()) + waiting

    def forget(self) -> tuple[list[RolloutSample], RolloutSample]:
        """Return the samples that were dropped since the last call, and the one that was not, which
        came last."""
        *dropped, last = self.taken
        self.taken.clear()
        return dropped, last


class Trainer(Protocol):
    """What `Windows` needs of the trainer."""

    args: Any

    def estimate_window(
        self, rollouts: list[AsyncRollout], num_before: int
    ) -> list[torch.Tensor]: ...
    def pass_over(self, group_id: int) -> None: ...


class Windows(torch.utils.data.IterableDataset):
    """The samples that TRL takes from its queue, a window of whole groups at a time, with
    advantages of tokens.

    Rows of a group follow each other. A group of which TRL has dropped a stale row is dropped, and
    counts as passed over: a resumed run goes on behind it.
    """

    def __init__(self, training: Trainer, samples: RolloutQueueDataset, taken: Taken) -> None:
        self._training, self._samples, self._taken = training, samples, taken
        self._stale: set[int] = set()  # groups of which TRL has dropped a row

    def __iter__(self) -> Iterator[dict[str, Any]]:
        ready: list[AsyncRollout] = []
        num_seen, size = 0, self._training.args.generation_batch_size
        for rows in self._groups():
            ready += self._rollouts(rows)
            while len(ready) >= size:
                window, ready = ready[:size], ready[size:]
                advantages = self._training.estimate_window(window, num_seen)
                num_seen += size
                for rollout, of_rollout in zip(window, advantages, strict=True):
                    yield from rollout.with_advantages(of_rollout)

    def _groups(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of each group, once the first row of another one has come."""
        group: list[dict[str, Any]] = []
        for row in self._samples:
            beat()
            dropped, sample = self._taken.forget()
            for stale in dropped:
                self._stale.add(stale.group_id)
                self._training.pass_over(stale.group_id)
            if group and row["group_id"] != group[0]["group_id"]:
                yield group
                group = []
            group.append({**row, "completion": sample.completion})

    def _rollouts(self, rows: list[dict[str, Any]]) -> list[AsyncRollout]:
        """Return the rollouts of a group; none if it is not whole, or too long to be trained."""
        args, group_id = self._training.args, rows[0]["group_id"]
        rollouts = _by_rollout(rows, args.num_generations)
        if group_id in self._stale or len(rollouts) < args.num_generations:
            logger.warning(
                "Dropping a prompt group, which is not whole: of its"
                f" {args.num_generations} rollouts {len(rollouts)} were not stale."
            )
            self._training.pass_over(group_id)
            return []
        if args.token_budget and min(len(row["input_ids"]) for row in rows) > args.token_budget:
            self._training.pass_over(group_id)  # TRL drops every row of it
        return [AsyncRollout(rollout) for rollout in rollouts]


def _by_rollout(rows: list[dict[str, Any]], size: int) -> list[list[dict[str, Any]]]:
    """Return the rows of a group of `size` rollouts by rollout.

    Our own worker says of each row which rollout it is of. Of another's rows, those with the same
    completion, one after the other, are of one rollout, if there are more rows than rollouts.
    """
    places = [row["metrics"].pop(ROLLOUT, None) for row in rows]
    completions = [row.pop("completion") for row in rows]
    is_told = None not in places
    if not is_told:
        places = completions if len(rows) > size else list(range(len(rows)))
    runs = groupby(zip(places, rows, strict=True), key=lambda pair: pair[0])
    rollouts = [[row for _, row in run] for _, run in runs]
    if not is_told and len(rows) > size != len(rollouts):
        raise ValueError(
            f"A prompt must have {size} rollouts of one row each, or of rows that follow each other"
            f" and have the rollout's own completion: the worker gave {len(rows)} rows with"
            f" {len(rollouts)} completions in turn."
        )
    return rollouts


class TokenAdvantages:
    """TRL's collator, whose packed rows have the advantages of the tokens in place of those of the
    samples."""

    def __init__(self, collate: DataCollatorForRollout) -> None:
        self._collate, self.num_batches = collate, 0

    def __call__(self, examples: list[Any]) -> dict[str, Any]:
        batch = self._collate(examples)
        rows: list[TreeRow] = examples[0]
        for i, row in enumerate(rows):
            given = [sample["token_advantages"] for sample in row.samples]
            expected = [
                torch.full_like(values, sample["advantage"])
                for values, sample in zip(given, row.samples, strict=True)
            ]
            is_loss = batch["token_index"][i] >= 0
            if not torch.equal(batch["advantages"][i][is_loss], torch.cat(expected)):
                raise RuntimeError(
                    "TRL packs the advantages of a row in another order than trl_miner knows,"
                    " sample by sample: nothing was trained on it. Use the version of TRL that"
                    " trl_miner's setup.cfg names."
                )
            batch["advantages"][i][is_loss] = torch.cat(given).to(batch["advantages"])
        self.num_batches += 1
        return batch


def by_tokens_of_the_step(batches: list[Any]) -> list[dict[str, Any]]:
    """Return the micro-batches of an optimizer step with one count of tokens, their mean.

    TRL divides the loss of a micro-batch by its own tokens, on all processes, and by the number of
    micro-batches, so that a token of a short micro-batch would weigh more. With the mean the sum
    over the step is a mean over its tokens: sum_i loss_i / (mean count * micro-batches).
    """
    count = torch.stack([batch["global_n_tokens"] for batch in batches]).mean(dim=0)
    return [{**batch, "global_n_tokens": count} for batch in batches]
