"""`MinerAsyncGRPOTrainer`: the advantages of the methods in TRL's asynchronous trainer, which generates meanwhile.

# N rollouts of a window, whole groups of G; F reward functions; T tokens that a rollout is trained on, at most
"""

import inspect
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer
from trl.experimental.async_grpo.packing import TREE_ATTENTION

from ..config import MinerGRPOConfig, NamesMethods, with_hints
from ..methods import ESTIMATORS, METHODS, Estimate, Rollouts
from ..methods.compose import estimate
from ..methods.fields import add_method_fields, check_limits
from ..methods.groups import GroupKinds, gate_on_correctness, group_kinds
from ..methods.own import own_knobs
from ..reward_functions import find_verifier
from ..rules import group_holds_two
from ..setting import convert_fields
from .patching import patched
from .trainer import MinerGRPOTrainer

logger = logging.getLogger(__name__)

# Settings of the synchronous trainer that have no effect here, and what to do instead.
REFUSED = {
    "beta": "TRL's asynchronous trainer has no reference model. Leave beta out",
    "kl_on": "TRL's asynchronous trainer has no reference model. Leave kl_on out",
    "dose_share": "It measures gradients of padded batches. Leave dose_share out, and set miner_lambda_max",
    "dynamic_sampling": "The rollout worker draws the prompts. Leave dynamic_sampling out",
    "prompt_selection": "The rollout worker draws the prompts. Leave prompt_selection out",
    "policy_loss": "Its loss is TRL's own clipped one. Leave policy_loss out",
    "loss_type": "Its loss is the mean over the trained tokens of a micro-batch. Leave loss_type out",
    "scale_rewards": "Its worker divides by the standard deviation of the group. Leave scale_rewards out",
    "reward_weights": "Its worker adds rewards with a weight of 1. Scale them in the reward functions",
    "num_iterations": "Each rollout is trained once. Leave num_iterations out",
    "use_vllm": "Its worker always asks a server. Leave use_vllm out, and set vllm_server_base_url",
}


def _like_synchronous(name: str) -> Any:
    """Return a field with the default, help and limits of the synchronous trainer's."""
    model = MinerGRPOConfig.__dataclass_fields__[name]
    return field(default=model.default, metadata=model.metadata)


@partial(with_hints, refused=REFUSED)
@dataclass
@add_method_fields(after={"advantage_estimator_kwargs": ESTIMATORS.values()}, headings={})
class MinerAsyncGRPOConfig(NamesMethods, AsyncGRPOConfig):
    """
    Configuration of [`MinerAsyncGRPOTrainer`]: everything TRL's `AsyncGRPOConfig` has, with its defaults, and:

    Parameters:
    """

    advantage_estimator: str = _like_synchronous("advantage_estimator")
    all_right: str | None = _like_synchronous("all_right")
    all_wrong: str | None = _like_synchronous("all_wrong")
    correct_threshold: float = _like_synchronous("correct_threshold")
    correct_reward_func: str | None = _like_synchronous("correct_reward_func")
    gate_on_correctness: bool = _like_synchronous("gate_on_correctness")
    advantage_estimator_kwargs: dict[str, Any] | None = _like_synchronous("advantage_estimator_kwargs")

    def __post_init__(self) -> None:
        convert_fields(self)
        for method in ESTIMATORS.values():
            method.check({name: getattr(self, method.setting(name)) for name in method.knobs}, method.setting(""))
        check_limits(self)
        for method in self.estimators:
            if needed := ", ".join(sorted(method.scores - {"old_logps"})):
                raise ValueError(
                    f"The asynchronous trainer has the log-probs of the server, and no {needed}: got the method "
                    f"{method.name!r}, which needs them. Choose another method, or train with MinerGRPOConfig."
                )
        if self.deepspeed is not None:
            raise ValueError(
                f"deepspeed does not work with TRL's asynchronous trainer: got {self.deepspeed!r}. Leave it out, or "
                f"use FSDP."
            )
        group_holds_two(self)
        self.window_of(self.num_processes)
        super().__post_init__()

    def window_of(self, num_processes: int) -> int:
        """Return the number of rollouts whose advantages are estimated together: those of an optimizer step."""
        size: int = self.per_device_train_batch_size * self.gradient_accumulation_steps * num_processes
        if size % self.num_generations:
            raise ValueError(
                f"num_generations must divide per_device_train_batch_size x gradient_accumulation_steps x processes, "
                f"so that a window holds whole groups: got {self.num_generations} and "
                f"{self.per_device_train_batch_size} x {self.gradient_accumulation_steps} x {num_processes} = {size}. "
                f"Change one of them."
            )
        return size

    def knobs(self, method: str) -> dict[str, Any]:
        """Return the settings of one method, given its name or import path, by the names that its function takes."""
        if method not in METHODS:
            return own_knobs(self._own_estimators(), self.advantage_estimator_kwargs)[method]
        return {name: getattr(self, METHODS[method].setting(name)) for name in METHODS[method].knobs}


class MinerAsyncGRPOTrainer(AsyncGRPOTrainer):
    """
    Drop-in for TRL's experimental `AsyncGRPOTrainer` that also learns from prompts whose rollouts are all right
    (https://huggingface.co/papers/2601.04731), and trains the methods that this is compared with.

    Takes TRL's arguments, with a [`MinerAsyncGRPOConfig`] as `args`. Rollouts, rewards, packing and loss are TRL's
    own; what changes are the advantages, one for each token. They are estimated on whole groups, a window of
    `per_device_train_batch_size x gradient_accumulation_steps x processes` rollouts at a time. That is an optimizer
    step, unless `token_budget` is above 0 or conversations fork into several rows: then steps hold other numbers of
    rows, and a window may reach into the next step. Old log-probs are those of the server that sampled.

    What has been checked: on a CPU, with an attention function of ours and rollouts from a stand-in of the worker, a
    step equals the same loss written out without packing. It has not run on a GPU, with TRL's attention kernel, with
    TRL's own worker, with LoRA or FSDP.
    """

    _tag_names = MinerGRPOTrainer._tag_names
    _name = MinerGRPOTrainer._name
    _paper = MinerGRPOTrainer._paper
    args: MinerAsyncGRPOConfig

    def __init__(self, model: str, reward_funcs: Any = None, args: Any = None, *rest: Any, **kwargs: Any) -> None:
        if args is None:
            args = MinerAsyncGRPOConfig(f"{model.rstrip('/').split('/')[-1]}-{self._name}")
        if not isinstance(args, MinerAsyncGRPOConfig):
            raise ValueError(
                f"args must be a MinerAsyncGRPOConfig: got {type(args).__name__}, which does not say which method to "
                f"train. Use MinerAsyncGRPOConfig with the same settings."
            )
        if self._paper["id"] not in {method.arxiv for method in args.estimators}:  # the card must not credit it
            self._name, self._paper = AsyncGRPOTrainer._name, AsyncGRPOTrainer._paper
            self._tag_names = AsyncGRPOTrainer._tag_names
        runs_kernel = _runs_tree_kernel()
        measure = async_grpo_trainer.get_peak_flops_per_device if torch.cuda.is_available() else lambda *_: None
        with patched(async_grpo_trainer, "get_peak_flops_per_device", measure):  # it asks CUDA for a name
            super().__init__(model, reward_funcs, args, *rest, **kwargs)
        if not runs_kernel:
            AttentionInterface.register(TREE_ATTENTION, tree_attention_anywhere)
            if self.accelerator.is_main_process:
                logger.warning(
                    "TRL's attention kernel needs a Hopper GPU, and there is none: attention is computed segment by "
                    "segment in plain torch. It is exact and slow, meant for tests and small models."
                )
        given = (
            inspect.signature(AsyncGRPOTrainer.__init__)
            .bind(self, model, reward_funcs, args, *rest, **kwargs)
            .arguments
        )
        self._may_fork = bool(given.get("tools") or given.get("environment_factory"))
        self._windows: Windows | None = None  # on the main process, once it trains
        self._collator: TokenAdvantages | None = None

    def get_train_dataloader(self) -> Any:
        loader = super().get_train_dataloader()
        window = self.args.window_of(self.accelerator.num_processes)
        if self.accelerator.is_main_process:
            planner = loader.dataset
            self._windows = planner.dataset = Windows(self, planner.dataset, window, may_fork=self._may_fork)
            inner = loader.base_dataloader  # accelerate's wrapper takes a collate_fn, too, and never calls it
            self._collator = inner.collate_fn = TokenAdvantages(inner.collate_fn)
        return loader

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        if self.accelerator.is_main_process and not (self._collator and self._collator.num_batches):
            raise RuntimeError(
                "The advantages of tokens must reach the loss: TRL or accelerate has not called what puts them there. "
                "Use the versions that trl_miner's setup.cfg names."
            )
        loss: Tensor = super().training_step(*args, **kwargs)
        return loss

    def estimate_window(self, rollouts: list["AsyncRollout"], num_seen: int) -> list[Tensor]:
        """Return the advantages of the trained tokens of each rollout of a window, and log what they are."""
        args = self.args
        rewards_N = torch.tensor([one.reward for one in rollouts], dtype=torch.float32)
        verifier_rewards_N = self._verifier_rewards(rollouts, rewards_N, is_first=num_seen == 0)
        advantages_N = torch.tensor([one.advantage for one in rollouts], dtype=torch.float32)
        if args.gate_on_correctness:
            rewards_N, advantages_N, is_gated_N = gate_on_correctness(
                rewards_N,
                advantages_N,
                args.num_generations,
                verifier_rewards_N=verifier_rewards_N,
                correct_threshold=args.correct_threshold,
            )
            self._metrics["train"]["groups/gated"].append(is_gated_N.float().mean().item())
        kinds = group_kinds(
            rewards_N,
            args.num_generations,
            correct_threshold=args.correct_threshold,
            verifier_rewards_N=verifier_rewards_N,
            advantages_N=advantages_N,
        )
        mask_NT = _pad([torch.ones(len(one.logps)) for one in rollouts])
        logps_NT = _pad([one.logps for one in rollouts])

        def score(wanted: Collection[str], is_row_N: Tensor) -> dict[str, Tensor]:
            if missing := set(wanted) - {"old_logps"}:
                raise ValueError(
                    f"The asynchronous trainer has the log-probs of the server alone: a method asks for "
                    f"{', '.join(sorted(missing))}. Choose another method, or train with MinerGRPOTrainer."
                )
            return {"old_logps": logps_NT, "mask": mask_NT}

        tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)
        result = estimate(
            args.composition,
            Rollouts(
                rewards_N,
                advantages_N,
                mask_NT,
                kinds,
                args.num_generations,
                score,
                prompt_keys=lambda: torch.tensor([one.prompt_key for one in rollouts]),
                texts=lambda: [tokenizer.decode(one.tokens, skip_special_tokens=True) for one in rollouts],
                seed=args.seed * 2**40 + num_seen,
            ),
            args.knobs,
        )
        self._log_window(kinds, advantages_N, result)
        return [result.advantages_BT[i, : len(one.logps)] for i, one in enumerate(rollouts)]

    def _verifier_rewards(self, rollouts: list["AsyncRollout"], rewards_N: Tensor, *, is_first: bool) -> Tensor:
        """Return (N,) the rewards that decide what is correct; the total ones where the worker tells no others."""
        args, names = self.args, sorted({name for one in rollouts for name in one.rewards})
        verifier = find_verifier(names or ["reward"], args.correct_reward_func)
        if args.gate_on_correctness and verifier.is_guess:
            raise ValueError(
                f"gate_on_correctness needs to know which reward function decides what is correct: got "
                f"{', '.join(names)}, of which none is a known verifier. Set correct_reward_func."
            )
        if verifier.is_guess and is_first:
            logger.warning(verifier.reason)
        if not names:
            return rewards_N
        table = [[one.rewards.get(name, torch.nan) for name in names] for one in rollouts]
        return verifier.rewards(torch.tensor(table, dtype=torch.float32))

    def _log_window(self, kinds: GroupKinds, advantages_N: Tensor, result: Estimate) -> None:
        """Log which rollouts GRPO uses and which the estimators do, under the names of the synchronous trainer."""
        shares, _ = result.shares(kinds, advantages_N)
        for name, value in {**shares, **result.metrics}.items():
            self._metrics["train"][name].append(value)


class AsyncRollout:
    """A rollout, which is one row of training data, or several where its conversation forks."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        first, is_own = rows[0], [row["completion_mask"][1:].astype(bool) for row in rows]  # nothing predicts token 0
        self.advantage: float = first["advantage"]
        if "reward" not in first["metrics"]:
            raise ValueError(
                f"A rollout must have its reward in its metrics: got {sorted(first['metrics'])}. Have the rollout "
                f"worker put it there, as TRL's own does."
            )
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
                f"{len(logps)} that are none. Start vLLM with --logprobs-mode processed_logprobs."
            )
        self.logps = torch.as_tensor(logps, dtype=torch.float32)
        prompt = first["input_ids"][: int(np.argmax(first["completion_mask"]))]
        self.prompt_key = zlib.crc32(prompt.astype("<i8").tobytes())


class Windows(torch.utils.data.IterableDataset):
    """The samples that TRL takes from its queue, a window of whole groups at a time, with advantages of tokens.

    A group that never becomes whole, because TRL drops a stale part of it, is dropped whole once it is stale itself.
    """

    def __init__(self, trainer: MinerAsyncGRPOTrainer, samples: Any, window: int, *, may_fork: bool) -> None:
        self._trainer, self._samples, self._window, self._may_fork = trainer, samples, window, may_fork
        self._queue = samples.queue = _RememberingQueue(samples.queue)
        self._open: dict[int, list[tuple[dict[str, Any], Any]]] = {}  # group -> rows, as TRL has yielded and got them
        self._complete: set[int] = set()  # groups that had all their rows; of a worker that may fork none
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
        """Add a sample to its group; return the rollouts of the group that is whole with it, if one is."""
        group, size = sample["group_id"], self._trainer.args.num_generations
        if group in self._complete:
            raise ValueError(
                f"A group must end with its {size} rollouts: got another row of group {group}. Pass the worker's "
                f"tools or environment_factory to the trainer, too: then a conversation may fork into several rows."
            )
        closed = []
        if self._may_fork:  # only the next group says that the last rollout has no more rows
            closed = [other for other in self._open if other != group]
        self._open.setdefault(group, []).append((sample, self._queue.last))
        if not self._may_fork and len(self._open[group]) == size:
            closed = [group]
            self._complete.add(group)
        whole: list[AsyncRollout] = []
        for one in closed:
            rows, num_got = self._open.pop(one), self._queue.num_got.pop(one)
            if num_got != len(rows):
                self._drop(one, f"{len(rows)} of {num_got} rows, and the others were stale")
                continue
            rollouts = [AsyncRollout(own) for own in _rows_of_rollouts(rows, forks=num_got != size)]
            if len(rollouts) == size:
                whole += rollouts
            else:
                self._drop(one, f"{len(rollouts)} of {size} rollouts in {num_got} rows")
        oldest = self._trainer.model_version - self._trainer.args.max_staleness
        for one in [one for one, rows in self._open.items() if rows[0][1].model_version < oldest]:
            del self._queue.num_got[one]
            self._drop(one, f"{len(self._open.pop(one))} of {size} rows, and the others are stale")
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


def _pad(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _runs_tree_kernel() -> bool:
    """Return whether TRL's attention kernel runs here: on Hopper GPUs, and AMD's."""
    if not torch.cuda.is_available():
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability()[0] == 9


def tree_attention_anywhere(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    tree_kv_index: Tensor,
    tree_cu_seqlens_q: Tensor,
    tree_cu_seqlens_k: Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return what TRL's kernel computes, on any device: each segment attends to its own path, causally, both ending
    at the same token.

    Raises:
        ValueError: The model caps its attention scores (`softcap`).
    """
    if softcap:
        raise ValueError(
            f"Attention without TRL's kernel knows no softcap: got {softcap}. Train on a Hopper GPU, or another model."
        )
    segments = []
    queries, keys = tree_cu_seqlens_q.tolist(), tree_cu_seqlens_k.tolist()
    for q0, q1, k0, k1 in zip(queries, queries[1:], keys, keys[1:], strict=False):
        path = tree_kv_index[k0:k1]
        shape, end = (q1 - q0, k1 - k0), k1 - k0 - (q1 - q0)
        sees = torch.ones(shape, dtype=torch.bool, device=query.device).tril(end)
        if sliding_window:
            sees = sees.triu(end - sliding_window + 1)
        segments.append(
            torch.nn.functional.scaled_dot_product_attention(
                query[:, :, q0:q1],
                key[:, :, path],
                value[:, :, path],
                attn_mask=sees,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    return torch.cat(segments, dim=2).transpose(1, 2), None
