"""Which padding may go, and whether rows may change their micro-batch: from the model and the configuration."""

import logging
from dataclasses import dataclass
from typing import Any

import trl
from packaging.version import Version

from .micro_batches import ROW_MEAN, SUMMED, TOKEN_MEAN
from .padding import NO_TRIM, PaddingTrim, safe_trim

logger = logging.getLogger(__name__)

_MASKS_LUSPO = Version(trl.__version__) >= Version("1.10")


@dataclass(frozen=True)
class RowLayout:
    """How freely a trainer may arrange rows and padding.

    Attributes:
        trim: The padding that can go.
        can_regroup: Whether rows may share a micro-batch with others than TRL's, or be left out, and it is asked for.
        token_budget: Tokens of a micro-batch at most, padding included; None: no limit but TRL's.
    """

    trim: PaddingTrim
    can_regroup: bool
    token_budget: int | None


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
