"""The model's forwards: what else they find out, over which rows, and without the padding that they do not need.

# B rows of this process or of one forward, N of all processes, K of those that a forward is spent on
# T padded completion tokens
"""

import logging
from collections.abc import Callable, Collection
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

from ..distributed import current_world
from .lasting import LastingTrainer
from .logits import STATISTICS, watch_logits
from .micro_batches import Cut, fewest_pieces, limits_of, partition, safe_cut

logger = logging.getLogger(__name__)

# What TRL's forward takes besides tokens. (Its signature does not say in every version: 1.14 has **kwargs.)
MULTIMODAL_KEYS = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)


class ForwardingTrainer(LastingTrainer):
    """TRL's trainer, whose forwards say more, and compute less."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wanted: set[str] = set()  # what the next no-grad forward is to find out besides log-probs
        self._captured: dict[str, Tensor] = {}  # and what it found, (rows, T) each
        self._cut = self._find_cut()
        self._moves_rows = False  # see `step.py`

    def _find_cut(self) -> Cut:
        """The padding that no forward needs."""
        if getattr(self, "use_liger_kernel", False):  # until TRL 1.13, another loss than `_compute_loss`
            return Cut(False, False)
        cut, reason = safe_cut(self.model.config, self.args.pad_to_multiple_of)
        if reason and (self.args.length_aware_training or self.args.length_aware_scoring):
            kept = "prompts keep their padding" if cut.completions else "rows keep their padding"
            logger.warning(f"length_aware_training and length_aware_scoring: {kept} with this model: {reason}.")
        return cut

    def _forward_rows(self, output: dict[str, Any], is_row_N: Tensor, names: Collection[str]) -> dict[str, Tensor]:
        """One forward over some rows of this process, in chunks of the training batch: (B, T) each, 0 on other rows.
        The log-probs come with it, asked for or not."""
        num_rows, num_tokens = output["completion_ids"].shape
        chunk_size = self.args.per_device_train_batch_size
        rows_K = is_row_N[current_world().local_slice(num_rows)].nonzero().squeeze(1)
        # ZeRO-3 and FSDP hang unless every process does as many forwards as the one with the most of such rows.
        num_chunks = -(-int(is_row_N.view(-1, num_rows).sum(dim=1).max()) // chunk_size)
        num_dummies = max(0, (num_chunks - 1) * chunk_size + 1 - len(rows_K))
        batch = select_rows(output, torch.cat([rows_K, rows_K.new_zeros(num_dummies)]))
        self._wanted = set(names) - {"old_logps"}
        logps_KT = self._forward(batch, chunk_size)
        captured, self._captured = {"old_logps": logps_KT, **self._captured}, {}
        values = {name: value.new_zeros(num_rows, num_tokens) for name, value in captured.items()}
        for name, value in captured.items():
            values[name][rows_K] = value[: len(rows_K)]
        return values

    @torch.no_grad()
    def _forward(self, batch: dict[str, Any], batch_size: int | None = None) -> Tensor:
        """Log-probs of the completion tokens under the policy as it is."""
        with disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            logps_BT: Tensor = self._say(batch, batch_size)[0]
        return logps_BT

    def _say(self, batch: dict[str, Any], batch_size: int | None = None, **wanted: Any) -> tuple[Any, ...]:
        """What TRL's forward of the policy returns of a batch."""
        return self._get_per_token_logps_and_entropies(
            self.model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].shape[1],
            batch_size=batch_size,
            **{name: batch[name] for name in MULTIMODAL_KEYS if name in batch},
            **wanted,
        )

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        # Of the first forward alone, and of this model: the reference has no entropies to give.
        wanted, self._wanted = self._wanted if model is self.model else set(), set()
        if "entropies" in wanted:
            kwargs["compute_entropy"] = True
        is_text = all(kwargs.get(name) is None for name in MULTIMODAL_KEYS)
        is_scoring = batch_size is not None and self.model.training and not torch.is_grad_enabled()
        forward: Callable[..., Any] = partial(self._watched_forward, wanted, model, **kwargs)
        if is_scoring and is_text and self.args.length_aware_scoring and self._cut.completions:
            forward = partial(self._by_length, forward)
        found, captured = forward(input_ids, attention_mask, logits_to_keep, batch_size)
        if wanted:
            self._captured = captured
        return found

    def _watched_forward(
        self,
        wanted: set[str],
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None,
        **kwargs: Any,
    ) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
        """What TRL's forward returns, and what else was wanted of it."""
        watch: Any = nullcontext({})
        if not wanted.isdisjoint(STATISTICS):
            completions = input_ids[:, -logits_to_keep:], attention_mask[:, -logits_to_keep:]
            watch = self._watch_logits(*completions, batch_size or len(input_ids))
        with watch as statistics:
            found = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs
            )
        return found, {**statistics, **({"entropies": found[1]} if "entropies" in wanted else {})}

    def _by_length(
        self,
        forward: Callable[..., tuple[tuple[Any, ...], dict[str, Tensor]]],
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int,
    ) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
        """`forward` over rows of like length together, without their padding; the results are where they belong."""
        num_rows, num_prompt = len(input_ids), input_ids.shape[1] - logits_to_keep
        batch = {"prompt_mask": attention_mask[:, :num_prompt], "completion_mask": attention_mask[:, num_prompt:]}
        self._check_budget(batch)
        lengths = self._cut.lengths(batch)
        budget = self.args.max_tokens_per_micro_batch if self._moves_rows else None
        if budget is None:
            num_chunks = -(-num_rows // batch_size)
        else:
            wanted = torch.tensor([fewest_pieces(lengths, budget)], device=input_ids.device)
            num_chunks = int(current_world().gather(wanted).max())
        found: tuple[Any, ...] = ()
        values: dict[Any, Tensor] = {}
        for chunk in partition(lengths, num_chunks, **limits_of(batch_size, input_ids.shape[1], budget)):
            rows = chunk or [int(lengths.sum(axis=1).argmin())]  # another process has more: keep in step
            before, after = lengths[rows].max(axis=0).tolist()
            places = torch.tensor(rows, device=input_ids.device)
            tokens = slice(num_prompt - before, num_prompt + after)
            found, captured = forward(input_ids[places, tokens], attention_mask[places, tokens], after, None)
            for name, value in (*enumerate(found), *captured.items()):
                if value is None or not chunk:
                    continue
                if name not in values:
                    values[name] = value.new_zeros(num_rows, logits_to_keep)
                values[name][places, :after] = value
        captured = {name: value for name, value in values.items() if isinstance(name, str)}
        return tuple(values.get(i) for i in range(len(found))), captured

    def _watch_logits(self, token_ids_BT: Tensor, mask_BT: Tensor, batch_size: int) -> Any:
        num_rows, num_tokens = token_ids_BT.shape
        size = torch.tensor([min(batch_size, num_rows) * num_tokens], device=token_ids_BT.device)
        largest = int(current_world().gather(size).max())  # as many calls of the head on every process
        return watch_logits(
            self.accelerator.unwrap_model(self.model),
            token_ids_BT,
            mask_BT,
            temperature=self.temperature,
            elements=largest * self.model.config.get_text_config().vocab_size,
        )

    def _check_budget(self, batch: dict[str, Any]) -> None:
        """Every process calls with the masks of its rows, and every one raises."""
        budget = self.args.max_tokens_per_micro_batch
        if budget is None or not self._moves_rows:
            return
        lengths_B2 = self._cut.lengths(batch)
        own = torch.from_numpy(lengths_B2[lengths_B2.sum(axis=1).argmax()])
        longest_W2 = current_world().gather(own.unsqueeze(0).to(self.accelerator.device))
        prompt, completion = longest_W2[longest_W2.sum(dim=1).argmax()].tolist()
        if prompt + completion > budget:
            raise ValueError(
                f"max_tokens_per_micro_batch must hold the longest rollout: got {budget}, and one of this generation "
                f"has {prompt + completion} tokens ({prompt} of the prompt, {completion} of the completion). Set it "
                f"to at least {prompt + completion}; {prompt + self.max_completion_length} holds every completion of "
                f"such a prompt."
            )


def is_multimodal(batch: dict[str, Any]) -> bool:
    """Does the batch of TRL's hold images?"""
    return any(name in batch for name in MULTIMODAL_KEYS)


def select_rows(batch: dict[str, Any], rows_K: Tensor) -> dict[str, Any]:
    """The rows of a batch as TRL returns it; images are stored apart from rows, so TRL's own helpers cut them."""
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
