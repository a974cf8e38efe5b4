"""Score tokens under the policy: where old log-probs come from, and the forwards that compute them.

# B rows of this process or of one forward, N of all processes, K of those that a forward is spent
on
# T padded completion tokens
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor

from ..methods.distributed import current_world
from .core import Core
from .logits import STATISTICS, check_logits, watch_logits
from .micro_batches import (
    loss_mask,
    micro_batch_limits,
    num_parts,
    partition,
    row_lengths,
    select_rows,
)
from .row_layout import can_sort_rows
from .sampler_check import SamplerCheck
from .trl_names import disable_gradient_checkpointing

SAMPLER_LOGPS = "sampling_per_token_logps"  # TRL's name
# What TRL's forward takes besides tokens. (Its signature does not say in every version: 1.14 has
# **kwargs.)
MULTIMODAL_KEYS = (
    *(
        "pixel_values",
        "image_grid_thw",
        "num_images",
        "pixel_attention_mask",
        "spatial_shapes",
        "num_tiles",
    ),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)


class Scores:
    """The old policy's scores of a generation batch, found late and for few rows:
    `Rollouts.score`."""

    def __init__(
        self,
        batch: dict[str, Any],
        given: dict[str, Tensor],
        forwards: "Forwards",
        sampler: SamplerCheck | None,
    ) -> None:
        self._batch, self._forwards, self._sampler = batch, forwards, sampler
        self._mask_BT = loss_mask(batch)
        # tokens that the sampler has not scored
        self._unscored_BT = torch.zeros_like(self._mask_BT, dtype=torch.bool)
        self._every_row_N = self._mask_BT.new_ones(
            current_world().size * len(self._mask_BT), dtype=torch.bool
        )
        # Scores, and the rows where they are known.
        self._known = {name: (score_BT, self._every_row_N) for name, score_BT in given.items()}

    def __call__(self, names: Collection[str], is_row_N: Tensor) -> dict[str, Tensor]:
        """Return (B, T) scores by name, valid at least on those rows, and "mask". Every process
        must call it.

        Old log-probs are TRL's where it has computed them, else the sampler's where they stand for
        the policy's, else those of a forward over the rows. Where they come from is the same on
        every process.
        """
        if not is_row_N.any():
            return {
                "mask": self._mask_BT,
                **{name: torch.zeros_like(self._mask_BT, dtype=torch.float32) for name in names},
            }
        missing = {
            name
            for name in names
            if name not in self._known or (is_row_N & ~self._known[name][1]).any()
        }
        if "old_logps" in missing and self._sampler is not None and self._has_sampled():
            missing.remove("old_logps")
            sampled_BT = self._batch[SAMPLER_LOGPS]
            self._sampler.check(
                sampled_BT, self._mask_BT, partial(self._forwards.without_dropout, self._batch)
            )
            self._known["old_logps"] = (sampled_BT, self._every_row_N)
            self._unscored_BT = self._mask_BT.bool() & ~sampled_BT.isfinite()
            self._sampler.log(
                "miner/unscored_tokens", float(current_world().sum(self._unscored_BT.sum()))
            )
        if missing:
            for name, score_BT in self._forwards.of_rows(self._batch, is_row_N, missing).items():
                if name in missing or name not in self._known:
                    self._known[name] = (score_BT, is_row_N)
        mask_BT = self._mask_BT
        if "old_logps" in names:  # The mask of other rows stays: MINER counts their tokens.
            is_row_B1 = is_row_N[current_world().local_slice(len(mask_BT))].unsqueeze(1)
            mask_BT = mask_BT * ~(self._unscored_BT & is_row_B1)
        return {"mask": mask_BT, **{name: self._known[name][0] for name in names}}

    def _has_sampled(self) -> bool:
        """Return whether every process has the sampler's log-probs: a `rollout_func` may have none
        for some."""
        return current_world().all(SAMPLER_LOGPS in self._batch, self._mask_BT.device)


class Forwards:
    """The forwards of a trainer's policy, and of its reference.

    It takes the trainer, because accelerate, PEFT and users replace models and methods: each call
    looks them up.
    """

    def __init__(self, trainer: Core) -> None:
        self._trainer = trainer
        self._wanted: set[str] = set()  # what the next forward is to find besides log-probs
        self._found: dict[str, Tensor] = {}  # where it puts that, (rows, T) each

    @cached_property
    def sorts_rows(self) -> bool:
        """Whether rows are sorted by length, in forwards and in optimizer steps."""
        return can_sort_rows(self._trainer)

    # A forward that TRL makes.

    def run(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Return what TRL's forward returns, computed without needless padding where no gradient is
        wanted."""
        trainer = self._trainer
        # Of the first forward alone, and of this model: a reference model has nothing else to tell.
        wanted, self._wanted = self._wanted if model is trainer.model else set(), set()
        if "entropies" in wanted:
            kwargs["compute_entropy"] = True
        is_scoring = (
            batch_size is not None and trainer.model.training and not torch.is_grad_enabled()
        )
        forward: Callable[..., dict[int | str, Any]] = partial(
            self._forward, wanted, model, **kwargs
        )
        if is_scoring and self.sorts_rows:
            forward = partial(self._forward_by_length, forward)
        values = forward(input_ids, attention_mask, logits_to_keep, batch_size)
        self._found.update({name: values[1 if name == "entropies" else name] for name in wanted})
        return tuple(value for name, value in values.items() if isinstance(name, int))

    @contextmanager
    def collecting(self, names: Collection[str]) -> Iterator[dict[str, Tensor]]:
        """Collect entropies and logit statistics in the next forward of the policy; yield the dict
        that it fills."""
        self._wanted, self._found = set(names), {}
        try:
            yield self._found
        finally:
            self._wanted, self._found = set(), {}

    def _forward(
        self,
        wanted: set[str],
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None,
        **kwargs: Any,
    ) -> dict[int | str, Any]:
        """Return what TRL's forward returns, by place, and logit statistics, if wanted, by name."""
        trainer = self._trainer
        watch: Any = nullcontext({})
        if not wanted.isdisjoint(STATISTICS):
            check_logits(model, " or ".join(method.name for method in trainer.args.estimators))
            rows = torch.tensor(
                [min(batch_size or len(input_ids), len(input_ids))], device=input_ids.device
            )
            # As many calls of the head on every process.
            largest = int(current_world().gather(rows * logits_to_keep).max())
            watch = watch_logits(
                trainer.accelerator.unwrap_model(trainer.model),
                input_ids[:, -logits_to_keep:],
                attention_mask[:, -logits_to_keep:],
                temperature=trainer.temperature,
                elements=largest * trainer.model.config.get_text_config().vocab_size,
            )
        with watch as statistics:
            # (by name: TRL 1.14 takes all before it as *args)
            kwargs["batch_size"] = batch_size
            result = trainer.trl_forward(model, input_ids, attention_mask, logits_to_keep, **kwargs)
        return {**dict(enumerate(result)), **statistics}

    def _forward_by_length(
        self,
        forward: Callable[..., dict[int | str, Any]],
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int,
    ) -> dict[int | str, Any]:
        """Run `forward` on rows of like length together, without their padding; results keep their
        places."""
        num_rows, num_prompt = len(input_ids), input_ids.shape[1] - logits_to_keep
        lengths = row_lengths(_masks(attention_mask, logits_to_keep))
        limits = micro_batch_limits(
            batch_size,
            input_ids.shape[1],
            self._trainer.args.max_tokens_per_micro_batch,
            input_ids.device,
        )
        wanted = torch.tensor(
            [num_parts(lengths, limits, -(-num_rows // batch_size))], device=input_ids.device
        )
        num_chunks = int(current_world().gather(wanted).max())
        values: dict[int | str, Any] = {}
        for chunk in partition(lengths, num_chunks, *limits):
            # another process has more: keep in step
            rows = chunk or [int(lengths.sum(axis=1).argmin())]
            before, after = lengths[rows].max(axis=0).tolist()
            places = torch.tensor(rows, device=input_ids.device)
            tokens = slice(num_prompt - before, num_prompt + after)
            for name, value in forward(
                input_ids[places, tokens], attention_mask[places, tokens], after, None
            ).items():
                if name not in values:
                    values[name] = (
                        None if value is None else value.new_zeros(num_rows, logits_to_keep)
                    )
                if value is not None and chunk:
                    values[name][places, :after] = value
        return values

    # Forwards of our own.

    @torch.no_grad()
    def logps(self, batch: dict[str, Any], batch_size: int) -> Tensor:
        """Return the policy's (B, T) log-probs of the completion tokens, in nats."""
        trainer = self._trainer
        with disable_gradient_checkpointing(
            trainer.model, trainer.args.gradient_checkpointing_kwargs
        ):
            logps_BT, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                batch["completion_ids"].shape[1],
                batch_size=batch_size,
                **{name: batch[name] for name in MULTIMODAL_KEYS if name in batch},
            )
        return cast(Tensor, logps_BT)

    def without_dropout(self, batch: dict[str, Any], is_row_N: Tensor) -> Tensor:
        """Return the policy's (B, T) log-probs of some rows without dropout, as the sampler's are.
        Every process must call it."""
        with self._trainer.evaluating(as_training=True):
            return self.of_rows(batch, is_row_N, ())["old_logps"]

    def of_rows(
        self, batch: dict[str, Any], is_row_N: Tensor, names: Collection[str]
    ) -> dict[str, Tensor]:
        """Return what a forward over some rows finds, in chunks: "old_logps", and `names`, (B, T)
        each; 0 in the other rows. Every process must call it."""
        num_rows, num_tokens = batch["completion_ids"].shape
        chunk_size = self._trainer.args.per_device_train_batch_size
        rows_K = is_row_N[current_world().local_slice(num_rows)].nonzero().squeeze(1)
        # ZeRO-3 and FSDP hang unless every process does as many forwards as the one with the most
        # of such rows.
        num_chunks = max(1, -(-int(is_row_N.view(-1, num_rows).sum(dim=1).max()) // chunk_size))
        num_dummies = max(0, (num_chunks - 1) * chunk_size + 1 - len(rows_K))
        chosen = select_rows(batch, torch.cat([rows_K, rows_K.new_zeros(num_dummies)]))
        with self.collecting(set(names) - {"old_logps"}) as statistics:
            statistics["old_logps"] = self.logps(chosen, chunk_size)
        scores = {}
        for name, value_KT in statistics.items():
            scores[name] = value_KT.new_zeros(num_rows, num_tokens)
            scores[name][rows_K] = value_KT[: len(rows_K)]
        return scores


def _masks(attention_mask: Tensor, num_completion: int) -> dict[str, Any]:
    num_prompt = attention_mask.shape[1] - num_completion
    return {
        "prompt_mask": attention_mask[:, :num_prompt],
        "completion_mask": attention_mask[:, num_prompt:],
    }
