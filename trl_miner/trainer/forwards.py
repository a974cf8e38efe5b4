"""The model's forwards: what else they find out, over which rows, and without the padding that they do not need.

# B rows of this process or of one forward, N of all processes, K of those that a forward is spent on
# T padded completion tokens
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid, use_adapter

from ..distributed import current_world
from .logits import RAW_LOGPS, STATISTICS, check_logits, watch_logits
from .micro_batches import fewest_micro_batches, micro_batch_limits, partition
from .row_layout import AS_TRL, RowLayout

# What TRL's forward takes besides tokens. (Its signature does not say in every version: 1.14 has **kwargs.)
MULTIMODAL_KEYS = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)


class Forwards:
    """The forwards of a trainer's policy."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.layout: RowLayout = AS_TRL
        self._wanted: set[str] = set()  # what the next forward is to find out: "entropies", those of `logits`
        self._probed: dict[str, Tensor] = {}  # where it puts that, (rows, T) each

    def run(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Return what TRL's forward returns, computed without needless padding where no gradient is wanted."""
        trainer = self._trainer
        # Of the first forward alone, and of this model: a reference model has nothing else to tell.
        wanted, self._wanted = self._wanted if model is trainer.model else set(), set()
        if "entropies" in wanted:
            kwargs["compute_entropy"] = True
        is_scoring = batch_size is not None and trainer.model.training and not torch.is_grad_enabled()
        forward: Callable[..., Any] = partial(self._probed_forward, wanted, model, **kwargs)
        if is_scoring and trainer.args.length_aware_scoring and self.layout.trim.completions:
            images = {name: kwargs[name] for name in MULTIMODAL_KEYS if kwargs.get(name) is not None}
            if self.can_sort([_masks(attention_mask, logits_to_keep) | images]):
                forward = partial(self._forward_by_length, forward)
        result, values = forward(input_ids, attention_mask, logits_to_keep, batch_size)
        self._probed.update(values)
        return result

    @contextmanager
    def probing(self, names: Collection[str]) -> Iterator[dict[str, Tensor]]:
        """Have the first forward meanwhile find out more, if it is the policy's; yield the dict that it fills."""
        self._wanted, self._probed = set(names), {}
        try:
            yield self._probed
        finally:
            self._wanted, self._probed = set(), {}

    def policy(self, batch: dict[str, Any], batch_size: int | None = None, **wanted: Any) -> tuple[Any, ...]:
        """Return what TRL's forward of the policy returns for a batch: log-probs (B, T), entropies, ..."""
        return self._of_batch(self._trainer.model, batch, batch_size, **wanted)

    def _of_batch(self, model: Any, batch: dict[str, Any], batch_size: int | None, **wanted: Any) -> tuple[Any, ...]:
        result: tuple[Any, ...] = self._trainer._get_per_token_logps_and_entropies(
            model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].shape[1],
            batch_size=batch_size,
            **{name: batch[name] for name in MULTIMODAL_KEYS if name in batch},
            **wanted,
        )
        return result

    @torch.no_grad()
    def logps(self, batch: dict[str, Any], batch_size: int | None = None, *, model: Any = None) -> Tensor:
        """Return the (B, T) log-probs of the completion tokens under a model as it is, by default the policy, in
        nats."""
        policy = self._trainer.model
        with disable_gradient_checkpointing(policy, self._trainer.args.gradient_checkpointing_kwargs):
            logps_BT: Tensor = self._of_batch(policy if model is None else model, batch, batch_size)[0]
        return logps_BT

    def of_rows(self, batch: dict[str, Any], is_row_N: Tensor, names: Collection[str]) -> dict[str, Tensor]:
        """Return what one forward over some rows of this process finds out. Every process must call it."""
        with self.probing(set(names) - {"old_logps"}) as probed:
            return self._over_rows(batch, is_row_N, lambda *rows: {"old_logps": self.logps(*rows), **probed})

    def reference_of_rows(self, batch: dict[str, Any], is_row_N: Tensor) -> Tensor:
        """Return the (B, T) log-probs of some rows of this process under the reference model, and 0 elsewhere. Every
        process must call it."""
        policy, reference = self._trainer.accelerator.unwrap_model(self._trainer.model), self._trainer.ref_model
        adapter: Any = nullcontext()
        if reference is None:  # as in TRL: the policy without its adapter, or with the one that it began with
            adapter = use_adapter(policy, adapter_name="ref" if "ref" in policy.peft_config else None)
        with adapter:
            score = lambda *rows: {"reference": self.logps(*rows, model=reference)}  # noqa: E731
            return self._over_rows(batch, is_row_N, score)["reference"]

    def _over_rows(
        self, batch: dict[str, Any], is_row_N: Tensor, score: Callable[..., dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Return what `score` finds of some rows, given them and the rows of a forward, in the places of the rows."""
        num_rows, num_tokens = batch["completion_ids"].shape
        chunk_size = self._trainer.args.per_device_train_batch_size
        rows_K = is_row_N[current_world().local_slice(num_rows)].nonzero().squeeze(1)
        # ZeRO-3 and FSDP hang unless every process does as many forwards as the one with the most of such rows.
        num_chunks = max(1, -(-int(is_row_N.view(-1, num_rows).sum(dim=1).max()) // chunk_size))
        num_dummies = max(0, (num_chunks - 1) * chunk_size + 1 - len(rows_K))
        chosen = select_rows(batch, torch.cat([rows_K, rows_K.new_zeros(num_dummies)]))
        scores = {}
        for name, value_KT in score(chosen, chunk_size).items():
            scores[name] = value_KT.new_zeros(num_rows, num_tokens)
            scores[name][rows_K] = value_KT[: len(rows_K)]
        return scores

    def can_sort(self, batches: Sequence[dict[str, Any]]) -> bool:
        """Return whether the rows of some of TRL's batches may be sorted by length: no process has images in its own.

        Every process must call it.

        Raises:
            ValueError: The token budget does not hold the longest rollout. Every process raises.
        """
        budget, longest = self.layout.token_budget, [0, 0]
        if budget is not None:
            lengths_n2 = np.concatenate([self.layout.trim.lengths(batch) for batch in batches])
            longest = lengths_n2[lengths_n2.sum(axis=1).argmax()].tolist()
        own = [*longest, int(any(map(is_multimodal, batches)))]
        of_each_W3 = current_world().gather(torch.tensor([own], device=self._trainer.accelerator.device))
        if of_each_W3[:, 2].any():
            return False
        prompt, completion, _ = of_each_W3[of_each_W3.sum(dim=1).argmax()].tolist()
        if budget is not None and prompt + completion > budget:
            raise ValueError(
                f"max_tokens_per_micro_batch must hold the longest rollout: got {budget}, and one of this generation "
                f"has {prompt + completion} tokens ({prompt} of the prompt, {completion} of the completion). Set it "
                f"to at least {prompt + completion}; {prompt + self._trainer.max_completion_length} holds every "
                f"completion of such a prompt."
            )
        return True

    def _probed_forward(
        self,
        names: set[str],
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None,
        **kwargs: Any,
    ) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
        """Return what TRL's forward returns, and what else was asked for."""
        watch: Any = nullcontext({})
        if not names.isdisjoint(STATISTICS):
            # Again: a function by import path says only here what it asks for.
            check_logits(model, " or ".join(method.name for method in self._trainer.args.estimators))
        if not names.isdisjoint({*STATISTICS, RAW_LOGPS}):
            completions = input_ids[:, -logits_to_keep:], attention_mask[:, -logits_to_keep:]
            watch = self._watch_logits(*completions, batch_size or len(input_ids), names)
        with watch as statistics:
            # (by name: TRL 1.14 takes all before it as *args)
            kwargs["batch_size"] = batch_size
            result = self._trainer.trl_forward(model, input_ids, attention_mask, logits_to_keep, **kwargs)
        return result, {**statistics, **({"entropies": result[1]} if "entropies" in names else {})}

    def _forward_by_length(
        self,
        forward: Callable[..., tuple[tuple[Any, ...], dict[str, Tensor]]],
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int,
    ) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
        """Run `forward` on rows of like length together, without their padding; results keep their places."""
        num_rows, num_prompt = len(input_ids), input_ids.shape[1] - logits_to_keep
        lengths = self.layout.trim.lengths(_masks(attention_mask, logits_to_keep))
        budget = self.layout.token_budget
        if budget is None:
            num_chunks = -(-num_rows // batch_size)
        else:
            wanted = torch.tensor([fewest_micro_batches(lengths, budget)], device=input_ids.device)
            num_chunks = int(current_world().gather(wanted).max())
        result: tuple[Any, ...] = ()
        values: dict[Any, Tensor] = {}
        for chunk in partition(lengths, num_chunks, **micro_batch_limits(batch_size, input_ids.shape[1], budget)):
            rows = chunk or [int(lengths.sum(axis=1).argmin())]  # another process has more: keep in step
            before, after = lengths[rows].max(axis=0).tolist()
            places = torch.tensor(rows, device=input_ids.device)
            tokens = slice(num_prompt - before, num_prompt + after)
            result, probed = forward(input_ids[places, tokens], attention_mask[places, tokens], after, None)
            for name, value in (*enumerate(result), *probed.items()):
                if value is None or not chunk:
                    continue
                if name not in values:
                    values[name] = value.new_zeros(num_rows, logits_to_keep)
                values[name][places, :after] = value
        probed = {name: value for name, value in values.items() if isinstance(name, str)}
        return tuple(values.get(i) for i in range(len(result))), probed

    def _watch_logits(self, token_ids_BT: Tensor, mask_BT: Tensor, batch_size: int, names: set[str]) -> Any:
        num_rows, num_tokens = token_ids_BT.shape
        size = torch.tensor([min(batch_size, num_rows) * num_tokens], device=token_ids_BT.device)
        largest = int(current_world().gather(size).max())  # as many calls of the head on every process
        trainer = self._trainer
        return watch_logits(
            trainer.accelerator.unwrap_model(trainer.model),
            token_ids_BT,
            mask_BT,
            temperature=trainer.temperature,
            elements=largest * trainer.model.config.get_text_config().vocab_size,
            names=names,
        )


def _masks(attention_mask: Tensor, num_completion: int) -> dict[str, Any]:
    num_prompt = attention_mask.shape[1] - num_completion
    return {"prompt_mask": attention_mask[:, :num_prompt], "completion_mask": attention_mask[:, num_prompt:]}


def is_multimodal(batch: dict[str, Any]) -> bool:
    """Return whether one of TRL's batches holds images."""
    return any(name in batch for name in MULTIMODAL_KEYS)


def select_rows(batch: dict[str, Any], rows_K: Tensor) -> dict[str, Any]:
    """Return the rows of a batch as TRL returns it; images are stored apart from rows, so TRL's own helpers split
    them."""
    batch = split_pixel_values_by_grid(batch)
    selected: dict[str, Any] = {}
    for name, value in batch.items():
        if isinstance(value, list):
            selected[name] = [value[row] for row in rows_K.tolist()]
        elif isinstance(value, Tensor) and value.dim() > 0:
            selected[name] = value[rows_K]
        else:
            selected[name] = value
    return unsplit_pixel_values_by_grid(selected)
