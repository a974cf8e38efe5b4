"""Gradients that are not finite: what makes them on GPUs is switched off, and none of them reaches
a weight."""

import math
from typing import Any

import torch
from transformers import Trainer


class FiniteGradients(Trainer):
    """A base class beside TRL's trainer, which comes after it.

    cuDNN's attention, which PyTorch prefers on Hopper GPUs, returns NaN for the gradient of some
    padded rows: those of 64, 192, 320, ... tokens with torch 2.11 to 2.13
    (https://github.com/pytorch/pytorch/issues/196678). The forward is right, so that no loss tells.
    It is switched off for the process, and PyTorch takes one of its others.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        torch.backends.cuda.enable_cudnn_sdp(False)
        super().__init__(*args, **kwargs)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return the norm over all processes that a log shows, before the optimizer's step.

        Raises:
            FloatingPointError: It is not finite, or DeepSpeed has left the step out because of
                that. With fp16 such steps are left out, and the run goes on with another scale of
                the loss.
        """
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if hasattr(norm, "full_tensor"):  # of FSDP2, where each process has a part
            norm = norm.full_tensor()
        deepspeed = getattr(self.accelerator, "deepspeed_engine_wrapped", None)
        if deepspeed is not None and not deepspeed.engine.was_step_applied():
            norm = math.nan
        if norm is not None and not self.args.fp16 and not math.isfinite(norm):
            raise FloatingPointError(
                f"The gradient of step {self.state.global_step + 1} must be finite: its norm is"
                f" {float(norm)}. No weight has changed. Resume from the last checkpoint, if there"
                " is one. If it comes again, set attn_implementation: eager, or a lower"
                " learning_rate."
            )
        return norm
