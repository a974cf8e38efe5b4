"""Whole groups out of TRL's queue of samples, window by window, and the advantages of their tokens
in its batches."""

import logging
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ..heartbeat import beat
from ..launching.server import LOGPROBS_FLAG

logger = logging.getLogger(__name__)


class AsyncRollout:
    """A rollout as TRL takes it from its queue, a row of training data."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        self.advantage: float = row["advantage"]
        self.reward: float = row["metrics"]["reward"]
        self.rewards: dict[str, float] = {
            name.removeprefix("rewards/"): value
            for name, value in row["metrics"].items()
            if name.startswith("rewards/")
        }
        is_own = row["completion_mask"][1:].astype(bool)  # nothing predicts token 0
        self.tokens = row["input_ids"][1:][is_own]
        logps = row["old_log_probs"][1:][is_own]
        if not np.isfinite(logps).all():
            raise ValueError(
                "The server must give a log-prob for every token: got"
                f" {int((~np.isfinite(logps)).sum())} of {len(logps)} that are none. Start vLLM"
                f" with {LOGPROBS_FLAG}."
            )
        self.logps = torch.as_tensor(logps, dtype=torch.float32)
        self.prompt_ids = row["input_ids"][: int(np.argmax(row["completion_mask"]))]
        self.prompt_key = zlib.crc32(self.prompt_ids.astype("<i8").tobytes())

    def record(self, advantages: torch.Tensor) -> dict[str, Any]:
        """Return what a record of token credit says of the rollout: the tokens that are trained."""
        own = {
            "token_ids": self.tokens,
            "counts": np.ones(len(self.tokens), bool),
            "old_logps": self.logps.numpy(),
        }
        return {
            "prompt_ids": self.prompt_ids.tolist(),
            **own,
            "advantages": advantages.float().numpy(),
        }


class Windows(torch.utils.data.IterableDataset):
    """The samples that TRL takes from its queue, a window of whole groups at a time, with
    advantages of tokens.

    Rows of a group follow each other. One that is not whole, because TRL drops a stale part of it,
    is dropped.
    """

    def __init__(self, trainer: Any, samples: Any, window: int) -> None:
        self._trainer, self._samples, self._window = trainer, samples, window

    def __iter__(self) -> Iterator[dict[str, Any]]:
        ready: list[AsyncRollout] = []
        group: list[dict[str, Any]] = []
        num_seen = 0
        for row in self._samples:
            beat()
            # only now is it known that no more rows come
            if group and row["group_id"] != group[0]["group_id"]:
                ready += self._rollouts(group)
                group = []
            group.append(row)
            while len(ready) >= self._window:
                rollouts, ready = ready[: self._window], ready[self._window :]
                advantages = self._trainer.estimate_window(rollouts, num_seen)
                num_seen += len(rollouts)
                for rollout, own in zip(rollouts, advantages, strict=True):
                    yield {**rollout.row, "token_advantages": own}

    def _rollouts(self, group: list[dict[str, Any]]) -> list[AsyncRollout]:
        """Return the rollouts of a group; none if it is not whole."""
        size = self._trainer.args.num_generations
        if len(group) > size:
            raise ValueError(
                f"A prompt must have {size} rollouts of one row each: the worker gave {len(group)}"
                " rows."
            )
        if len(group) < size:
            logger.warning(
                f"Dropping a prompt group, which is not whole: of its {size} rollouts {len(group)}"
                " were not stale."
            )
            # else a resumed run begins there again
            self._trainer._trained_groups.add(group[0]["group_id"])
            return []
        return [AsyncRollout(row) for row in group]


class TokenAdvantages:
    """TRL's collator, whose packed rows have the advantages of the tokens in place of those of the
    samples."""

    def __init__(self, collate: Callable[[list[Any]], dict[str, Any]]) -> None:
        self._collate, self.num_batches = collate, 0

    def __call__(self, examples: list[Any]) -> dict[str, Any]:
        batch = self._collate(examples)
        (rows,) = examples
        for i, row in enumerate(rows):
            own = [sample["token_advantages"] for sample in row.samples]
            expected = [
                torch.full_like(one, sample["advantage"])
                for one, sample in zip(own, row.samples, strict=True)
            ]
            is_loss = batch["token_index"][i] >= 0
            if not torch.equal(batch["advantages"][i][is_loss], torch.cat(expected)):
                raise RuntimeError(
                    "TRL packs the advantages of a row in another order than trl_miner knows,"
                    " sample by sample: nothing was trained on it. Use the version of TRL that"
                    " trl_miner's setup.cfg names."
                )
            batch["advantages"][i][is_loss] = torch.cat(own).to(batch["advantages"])
        self.num_batches += 1
        return batch
