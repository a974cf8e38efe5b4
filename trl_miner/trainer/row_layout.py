"""Rows and padding: what padding may go, and whether rows may change their micro-batch.

# B rows of a batch; P padded prompt tokens, T padded completion tokens
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import trl
from packaging.version import Version
from torch import Tensor

logger = logging.getLogger(__name__)

# How TRL's losses average over a micro-batch, and so what keeps the gradient when its rows are others:
SUMMED = {"cispo", "dapo", "vespo"}  # by tokens of the whole generation batch: nothing to do
ROW_MEAN = {"dr_grpo", "grpo", "luspo", "sapo"}  # by rows: weight a micro-batch by its rows
TOKEN_MEAN = {"bnpo"}  # by tokens: weight a row by the tokens of the micro-batch that it comes from

_MASKS_LUSPO = Version(trl.__version__) >= Version("1.10")


@dataclass(frozen=True)
class PaddingTrim:
    """The padding that can go without changing what the model says of the other tokens."""

    prompts: bool = True  # whether padding on the left of prompts can go
    completions: bool = True  # whether padding on the right of completions can go
    multiple: int = 1  # lengths stay multiples of this number of tokens

    def lengths(self, batch: dict[str, Any]) -> np.ndarray:
        """Return (B, 2), the tokens of each row's prompt and completion, with the padding that has to stay."""
        columns = []
        # At least 2 of a completion: TRL takes a tensor with one column for one number per row.
        for name, is_trimmed, least in (("prompt_mask", self.prompts, 1), ("completion_mask", self.completions, 2)):
            mask = batch[name].bool()
            size = mask.shape[1]
            if is_trimmed and size > 0:
                places = torch.arange(size, 0, -1) if name == "prompt_mask" else torch.arange(1, size + 1)
                lengths = (mask * places.to(mask.device)).amax(dim=1).clamp(min=least)
                lengths = (-(-lengths // self.multiple) * self.multiple).clamp(max=size)
            else:
                lengths = torch.full((len(mask),), size, device=mask.device)
            columns.append(lengths)
        return torch.stack(columns, dim=1).cpu().numpy()

    def trim(self, batch: dict[str, Any], lengths: np.ndarray | None = None) -> dict[str, Any]:
        """Return the batch without the padding that none of its rows needs."""
        longest = (self.lengths(batch) if lengths is None else lengths).max(axis=0)
        return shorten(batch, *longest.tolist())


NO_TRIM = PaddingTrim(prompts=False, completions=False)


def shorten(batch: dict[str, Any], num_prompt: int, num_completion: int) -> dict[str, Any]:
    """Return a batch with the last `num_prompt` prompt tokens and the first `num_completion` completion tokens."""
    size = batch["completion_ids"].shape[1]
    short = dict(batch)
    for name, value in batch.items():
        if name in ("prompt_ids", "prompt_mask"):
            short[name] = value[:, value.shape[1] - num_prompt :]
        elif isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == size:
            short[name] = value[:, :num_completion]
    return short


def padded_length(batch: dict[str, Any]) -> int:
    """Return the tokens of a row, prompt and completion, padding included."""
    return int(batch["prompt_ids"].shape[1] + batch["completion_ids"].shape[1])


def loss_mask(batch: dict[str, Any]) -> Tensor:
    """Return (B, T), non-zero at the tokens that count: those of the completion that are not a tool's."""
    mask_BT = batch["completion_mask"]
    return mask_BT * batch["tool_mask"] if "tool_mask" in batch else mask_BT


def safe_trim(config: Any, multiple: int | None) -> tuple[PaddingTrim, str]:
    """Return what padding can go for a model, and why not all of it ("": all can go).

    A model whose positions are relative does not see how much padding stands on the left. Others do, and a few change
    their positions with the length of the whole batch.
    """
    config = config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    by_layer = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    kinds = {str(kind.get("rope_type", kind.get("type", "default"))) for kind in by_layer}
    if kinds & {"dynamic", "longrope"}:
        return NO_TRIM, f"its {'/'.join(sorted(kinds))} RoPE depends on the padded length"
    if getattr(config, "attention_chunk_size", None):
        return PaddingTrim(False, True, multiple or 1), "its attention is in chunks, which start at the padding"
    if not rope and getattr(config, "rope_theta", None) is None:
        return PaddingTrim(False, True, multiple or 1), "its positions may be absolute, and then start at the padding"
    return PaddingTrim(True, True, multiple or 1), ""


@dataclass(frozen=True)
class RowLayout:
    """How freely a trainer may arrange rows and padding."""

    trim: PaddingTrim  # the padding that can go
    # whether rows may share a micro-batch with others than TRL's, or be left out, and it is asked for
    can_regroup: bool
    token_budget: int | None  # tokens of a micro-batch at most, padding included; None: no limit but TRL's


def choose_layout(trainer: Any) -> RowLayout:
    """Return what the trainer's model and configuration allow; warn of what they ask for and cannot have."""
    args, method = trainer.args, trainer.args.policy_loss_method
    trim = _model_trim(trainer)
    if method.keeps_padding or (trainer.loss_type == "luspo" and not _MASKS_LUSPO):
        trim = NO_TRIM
    is_wanted = {
        "length_aware_training": args.length_aware_training,
        "skip_zero_advantages": args.skip_zero_advantages,
        "max_tokens_per_micro_batch": args.max_tokens_per_micro_batch is not None,
    }
    wanted = [name for name in is_wanted if is_wanted[name]]
    reason = _reason_to_keep_micro_batches(trainer)
    if reason and wanted:
        is_trimmed = args.length_aware_training and trim.completions
        less = ", less the padding that none of its rows needs" if is_trimmed else ""
        logger.warning(f"{', '.join(wanted)}: micro-batches stay TRL's{less}, because {reason}.")
    can_regroup = reason is None and bool(wanted)
    return RowLayout(trim, can_regroup, args.max_tokens_per_micro_batch if can_regroup else None)


def _model_trim(trainer: Any) -> PaddingTrim:
    args = trainer.args
    if uses_liger_loss(trainer):
        return NO_TRIM
    trim, reason = safe_trim(trainer.model.config, args.pad_to_multiple_of)
    if reason and (args.length_aware_training or args.length_aware_scoring):
        kept = "prompts keep their padding" if trim.completions else "rows keep their padding"
        logger.warning(f"length_aware_training and length_aware_scoring: {kept} with this model: {reason}.")
    return trim


def _reason_to_keep_micro_batches(trainer: Any) -> str | None:
    """Return why the gradient is not a sum over rows whatever micro-batch they are in; None: it is."""
    if uses_liger_loss(trainer):
        return "Liger's loss takes TRL's micro-batches"
    if trainer.args.policy_loss_method.fixed_micro_batches:
        return str(trainer.args.policy_loss_method.fixed_micro_batches)
    if trainer.loss_type == "luspo" and not _MASKS_LUSPO:
        return "this version of TRL averages loss_type=luspo over padding too; 1.10 does not"
    if trainer.loss_type not in SUMMED | ROW_MEAN | TOKEN_MEAN:
        return f"loss_type={trainer.loss_type} is not known here"
    if trainer.loss_type in TOKEN_MEAN and trainer.beta != 0.0:
        return f"with beta={trainer.beta}, loss_type={trainer.loss_type} is a mean over the tokens of a micro-batch"
    if trainer.top_entropy_quantile < 1.0:
        return "top_entropy_quantile picks among the tokens of a micro-batch"
    if trainer._entropy_bonus_enabled:
        return "the entropy bonus is a mean over the tokens of a micro-batch"
    if trainer.aux_loss_enabled:
        return "the router's loss is a mean over the tokens of a micro-batch"
    return None


def uses_liger_loss(trainer: Any) -> bool:
    """Return whether TRL computes another loss than `_compute_loss`: until TRL 1.13, Liger's."""
    return bool(getattr(trainer, "use_liger_kernel", False))
