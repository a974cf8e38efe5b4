"""A gradient that is not finite ends the run before it reaches a weight."""

from typing import Any

import torch
from accelerate import Accelerator
from transformers import TrainerCallback


class FiniteGradients(TrainerCallback):
    """Looks at the gradient of each optimizer step before the optimizer does.

    With fp16 the loss scaler leaves such steps out, and the run goes on. DeepSpeed leaves them out
    by itself, from 0.19.8 on in all its stages, and says so afterwards.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Raise FloatingPointError on every process if one has such a gradient."""
        if args.fp16 or model is None:
            return
        gradients = [
            gradient.to_local() if hasattr(gradient, "to_local") else gradient  # of FSDP2
            for parameter in model.parameters()
            if (gradient := parameter.grad) is not None
        ]
        # a norm is finite only if all numbers are
        norm = torch.nn.utils.get_total_norm(gradients).to(self.accelerator.device)
        engine = getattr(self.accelerator, "deepspeed_engine_wrapped", None)
        if engine is not None and not engine.engine.was_step_applied():
            norm = norm + torch.inf
        if self.accelerator.reduce((~norm.isfinite()).int()):  # on any process
            raise FloatingPointError(
                f"The gradient of step {state.global_step + 1} must be finite: it is not. No weight"
                " has changed. Resume from the last checkpoint, if there is one. If it comes"
                " again, set attn_implementation to eager or a flash kernel (PyTorch's cuDNN"
                " attention has such a fault), or lower the learning_rate."
            )
