"""Whole groups out of TRL's queue of samples, window by window, and the advantages of their tokens in its batches."""

import logging
import time
import zlib
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

import numpy as np
import torch

from ..heartbeat import beat
from ..launching.server import LOGPROBS_FLAG

logger = logging.getLogger(__name__)


class AsyncRollout:
    """A rollout: a sample of TRL's."""

    def __init__(self, sample: dict[str, Any]) -> None:
        self.sample, metrics = sample, sample["metrics"]
        self.advantage: float = sample["advantage"]
        if "reward" not in metrics:
            raise ValueError(
                f"A rollout must have its reward in its metrics: got {sorted(metrics)}. Have the rollout worker put "
                f"it there, as TRL's own does."
            )
        self.reward: float = metrics["reward"]
        prefix = "rewards/"
        self.rewards: dict[str, float] = {
            name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)
        }
        is_own = sample["completion_mask"][1:].astype(bool)  # nothing predicts token 0
        self.tokens = sample["input_ids"][1:][is_own]
        logps = sample["old_log_probs"][1:][is_own]
        if not np.isfinite(logps).all():
            raise ValueError(
                f"The server must give a log-prob for every token: got {int((~np.isfinite(logps)).sum())} of "
                f"{len(logps)} that are none. Start vLLM with {LOGPROBS_FLAG}."
            )
        self.logps = torch.as_tensor(logps, dtype=torch.float32)
        self.prompt_ids = sample["input_ids"][: int(np.argmax(sample["completion_mask"]))]
        self.prompt_key = zlib.crc32(self.prompt_ids.astype("<i8").tobytes())

    def record(self, advantages: torch.Tensor) -> dict[str, Any]:
        """Return what a record of token credit says of the rollout: the tokens that are trained."""
        own = {"token_ids": self.tokens, "counts": np.ones(len(self.tokens), bool), "old_logps": self.logps.numpy()}
        return {"prompt_ids": self.prompt_ids.tolist(), **own, "advantages": advantages.float().numpy()}


class Windows(torch.utils.data.IterableDataset):
    """The samples that TRL takes from its queue, a window of whole groups at a time, with advantages of tokens.

    A group that never becomes whole, because TRL drops a stale part of it, is dropped whole once it is stale itself.
    """

    def __init__(self, trainer: Any, samples: Any, window: int) -> None:
        self._trainer, self._samples, self._window = trainer, samples, window
        self._queue = samples.queue = _RememberingQueue(samples.queue, trainer)
        self._open: dict[int, list[dict[str, Any]]] = {}  # the samples of groups that are not whole
        self._versions: dict[int, int] = {}  # of the model, of the first sample of each of these
        self._whole: set[int] = set()  # groups that had all their samples
        self._num_seen = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        ready: list[AsyncRollout] = []
        for sample in self._samples:
            ready += self._take(sample)
            while len(ready) >= self._window:
                rollouts, ready = ready[: self._window], ready[self._window :]
                advantages = self._trainer.estimate_window(rollouts, self._num_seen)
                self._num_seen += len(rollouts)
                for rollout, own in zip(rollouts, advantages, strict=True):
                    yield {**rollout.sample, "token_advantages": own}

    def _take(self, sample: dict[str, Any]) -> list[AsyncRollout]:
        """Add a sample to its group; return the rollouts of the group, if it is whole with it."""
        group, size = sample["group_id"], self._trainer.args.num_generations
        if group in self._whole:
            raise ValueError(
                f"A group must end with its {size} rollouts: got another sample of group {group}. Use a rollout "
                f"worker that gives one sample for each rollout."
            )
        self._versions.setdefault(group, self._queue.last.model_version)
        samples = self._open.setdefault(group, [])
        samples.append(sample)
        whole: list[AsyncRollout] = []
        if len(samples) == size:
            self._whole.add(group)
            self._close(group)
            whole = [*map(AsyncRollout, samples)]
        oldest = self._trainer.model_version - self._trainer.args.max_staleness
        for stale in [one for one, version in self._versions.items() if version < oldest]:
            logger.warning(f"Dropping prompt group {stale}: TRL has dropped some of its {size} rollouts as stale.")
            self._trainer._metrics["train"]["groups/incomplete_total"].append(1.0)
            self._close(stale)
        return whole

    def _close(self, group: int) -> None:
        del self._open[group], self._versions[group]


class _RememberingQueue:
    """A queue that remembers what it gave last: TRL's samples leave out the version of the model."""

    def __init__(self, queue: Any, trainer: Any) -> None:
        self._queue, args = queue, trainer.args
        self._patience = args.request_timeout + args.heartbeat_stale_after_s
        self._since: float | None = None  # when it was found empty
        self.last: Any = None

    def get(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self.last = self._queue.get(*args, **kwargs)
        except Empty:
            self._since = self._since or time.monotonic()
            if time.monotonic() - self._since > self._patience:
                raise RuntimeError(
                    f"No rollout has come for {self._patience:g} seconds (request_timeout + heartbeat_stale_after_s), "
                    f"although the worker is alive. Look whether the server generates, or raise request_timeout."
                ) from None
            raise
        self._since = None
        beat()
        return self.last

    def qsize(self) -> int:
        return int(self._queue.qsize())


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
