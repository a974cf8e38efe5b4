"""Whether rows may be sorted by length into micro-batches of their own, or TRL's micro-batches must stay."""

import logging
from typing import Any

import torch
from torch import Tensor

from ..distributed import current_world
from .hooks import MICRO_BATCH_HOOKS, overridden
from .padding_probe import plain_ids, position_problem, probe_padding

logger = logging.getLogger(__name__)

# TRL's losses whose gradient is a sum over rows, whatever micro-batch they are in:
SUMMED = {"cispo", "dapo", "vespo"}  # averaged by tokens of the whole generation batch: nothing to do
ROW_MEAN = {"dr_grpo", "grpo", "luspo", "sapo"}  # averaged by rows: weight a micro-batch by its rows


def can_sort_rows(trainer: Any) -> bool:
    """Return whether the trainer may sort rows by length, without needless padding; warn if it was to, and may not.

    It takes the trainer for its settings, model and forward. Every process must call it, before the first batch and
    with the weights where they are trained.
    """
    if not trainer.args.compute_less:
        return False
    if reason := _loss_problem(trainer) or _model_problem(trainer):
        warn_of_trls_micro_batches(trainer, reason)
        return False
    return True


def warn_of_trls_micro_batches(trainer: Any, reason: str) -> None:
    """Say on one process that the run cannot have the micro-batches that it asks for."""
    names = "compute_less"
    if trainer.args.max_tokens_per_micro_batch is not None:
        names += ", max_tokens_per_micro_batch"
    if trainer.is_world_process_zero():
        logger.warning(f"{names}: micro-batches stay TRL's, because {reason}.")


def _loss_problem(trainer: Any) -> str | None:
    """Return why the gradient is no sum over rows, as far as one can see; None: it is."""
    if hooks := overridden(trainer, MICRO_BATCH_HOOKS):
        return f"{type(trainer).__name__} overrides {', '.join(hooks)}"
    if trainer.args.policy_loss_method.fixed_micro_batches:
        return str(trainer.args.policy_loss_method.fixed_micro_batches)
    if trainer.loss_type not in SUMMED | ROW_MEAN:
        return f"loss_type={trainer.loss_type} is not known here as a sum over rollouts"
    if trainer.args.pad_to_multiple_of:
        return "pad_to_multiple_of sets their lengths"
    if trainer.top_entropy_quantile < 1.0:
        return "top_entropy_quantile picks among the tokens of a micro-batch"
    if trainer._entropy_bonus_enabled:
        return "the entropy bonus is a mean over the tokens of a micro-batch"
    if trainer.aux_loss_enabled:
        return "the router's loss is a mean over the tokens of a micro-batch"
    return None


def _model_problem(trainer: Any) -> str | None:
    """Return why log-probs of a row depend on padding or other rows; None: they do not. The same on every process."""
    config, device = trainer.model.config, trainer.accelerator.device
    if problem := position_problem(config.get_text_config()):
        return f"padding matters to this model: {problem}"
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)  # a processor has one

    def logps(batch: dict[str, Any]) -> Tensor:
        found: Tensor = trainer.forwards.policy({name: rows.to(device) for name, rows in batch.items()})[0]
        return found

    error, moved = "", torch.inf
    try:
        ids, text_config = plain_ids(tokenizer, config), config.get_text_config()
        with torch.no_grad(), trainer.undoing_draws(), trainer.evaluating():
            moved = probe_padding(logps, ids, tokenizer.pad_token_id, text_config, _rounding_error(trainer))
    except Exception as failure:  # a model that takes no text alone
        error = f" ({type(failure).__name__}: {failure})"
    moved = float(current_world().gather(torch.tensor([moved], device=device)).max())
    if moved == torch.inf:
        return f"a forward of a few tokens does not tell what this model's log-probs depend on{error}"
    if moved > 1:
        return "with this model the log-probs of a row depend on padding or on the other rows"
    return None


def _rounding_error(trainer: Any) -> float:
    """Return the relative rounding error of the trainer's forwards."""
    dtypes = {weight.dtype for weight in trainer.model.parameters() if weight.is_floating_point()}
    dtypes |= {"bf16": {torch.bfloat16}, "fp16": {torch.float16}}.get(trainer.accelerator.mixed_precision, set())
    eps = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    if trainer.accelerator.device.type == "cuda":
        eps = max(eps, 2**-10)  # TF32
    return min(eps, torch.finfo(torch.bfloat16).eps)
