"""Rows and padding: what padding may go, and whether rows may change their micro-batch."""

import logging
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..distributed import current_world
from .padding import NO_TRIM, PaddingTrim
from .padding_probe import plain_ids, probe_padding, removable_padding

logger = logging.getLogger(__name__)

# How TRL's losses average over a micro-batch, and so what keeps the gradient when its rows are others:
SUMMED = {"cispo", "dapo", "vespo"}  # by tokens of the whole generation batch: nothing to do
ROW_MEAN = {"dr_grpo", "grpo", "luspo", "sapo"}  # by rows: weight a micro-batch by its rows
TOKEN_MEAN = {"bnpo"}  # by tokens: weight a row by the tokens of the micro-batch that it comes from


@dataclass(frozen=True)
class RowLayout:
    """How freely a trainer may arrange rows and padding."""

    trim: PaddingTrim  # the padding that can go
    # whether rows may share a micro-batch with others than TRL's, or be left out
    can_regroup: bool
    token_budget: int | None  # tokens of a micro-batch at most, padding included; None: no limit but TRL's


AS_TRL = RowLayout(NO_TRIM, can_regroup=False, token_budget=None)  # until the model has been asked


def choose_layout(trainer: Any) -> RowLayout:
    """Return what the trainer's model and configuration allow; warn of what they ask for and cannot have.

    It takes the trainer for its settings, model and forward. Every process must call it, before the first batch and
    with the weights where they are trained.
    """
    args = trainer.args
    if not args.compute_less:
        return RowLayout(NO_TRIM, can_regroup=False, token_budget=None)
    trim, sees_rows = _probe_model(trainer)
    if args.policy_loss_method.keeps_padding:
        trim = NO_TRIM
    reason = _reason_to_keep_micro_batches(trainer) or sees_rows
    if reason:
        less = ", less the padding that none of its rows needs" if trim.completions else ""
        warn_of_trls_micro_batches(trainer, f"{less}, because {reason}.")
    return RowLayout(trim, can_regroup=not reason, token_budget=None if reason else args.max_tokens_per_micro_batch)


def warn_of_trls_micro_batches(trainer: Any, rest: str) -> None:
    """Say on one process that the run cannot have the micro-batches that it asks for."""
    names = "compute_less"
    if trainer.args.max_tokens_per_micro_batch is not None:
        names += ", max_tokens_per_micro_batch"
    if trainer.is_world_process_zero():
        logger.warning(f"{names}: micro-batches stay TRL's{rest}")


def _probe_model(trainer: Any) -> tuple[PaddingTrim, str | None]:
    """Return what padding can go, the same on every process, and why rows must stay together (None: they need not)."""
    args, config, device = trainer.args, trainer.model.config, trainer.accelerator.device
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)  # a processor has one

    def logps(batch: dict[str, Any]) -> Tensor:
        found: Tensor = trainer.forwards.policy({name: rows.to(device) for name, rows in batch.items()})[0]
        return found

    error, probed_2 = "", torch.full((2,), torch.inf)
    try:
        ids, eps = plain_ids(tokenizer, config), _rounding_error(trainer)
        with torch.no_grad(), trainer.undoing_draws(), trainer.evaluating():
            probed_2 = probe_padding(logps, ids, tokenizer.pad_token_id, config.get_text_config(), eps)
    except Exception as failure:  # a model that takes no text alone: it keeps its padding
        error = f" ({type(failure).__name__}: {failure})"
    probed_2 = current_world().gather(probed_2[None].to(device)).amax(dim=0)
    trim, reason = removable_padding(probed_2, config.get_text_config())
    if probed_2.isinf().all():
        reason = f"a forward of a few tokens does not tell what its log-probs depend on{error}"
    if reason and trainer.is_world_process_zero():
        kept = "prompts keep their padding" if trim.completions else "rows keep their padding"
        logger.warning(f"compute_less: {kept} with this model: {reason}.")
    together = "the log-probs of a row may depend on the other rows of its micro-batch with this model"
    return replace(trim, multiple=args.pad_to_multiple_of or 1), together if probed_2[1] > 1 else None


def _rounding_error(trainer: Any) -> float:
    """Return the relative rounding error of the trainer's forwards."""
    dtypes = {weight.dtype for weight in trainer.model.parameters() if weight.is_floating_point()}
    dtypes |= {"bf16": {torch.bfloat16}, "fp16": {torch.float16}}.get(trainer.accelerator.mixed_precision, set())
    eps = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    if trainer.accelerator.device.type == "cuda":
        eps = max(eps, 2**-10)  # TF32
    return min(eps, torch.finfo(torch.bfloat16).eps)


def _reason_to_keep_micro_batches(trainer: Any) -> str | None:
    """Return why the gradient is not a sum over rows whatever micro-batch they are in; None: it is."""
    if trainer.args.policy_loss_method.fixed_micro_batches:
        return str(trainer.args.policy_loss_method.fixed_micro_batches)
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
