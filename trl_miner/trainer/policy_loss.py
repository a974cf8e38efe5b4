"""`policy_loss`: other advantages and clipping bounds in TRL's loss, between its forward and its
arithmetic.

# B rows of a micro-batch or of an optimizer step, T padded completion tokens
"""

from typing import Any

import torch
from torch import Tensor

from ..methods import Surrogate
from ..methods.distributed import current_world
from .core import Core
from .micro_batches import MicroBatchPlan, loss_mask
from .row_layout import refuse_own_loss

_READ = ("completion_mask", "tool_mask", "advantages", "old_per_token_logps")


class PolicyLoss:
    """Has TRL's loss see what the method of `policy_loss` computes.

    It takes the trainer for its settings, its counters, its buffered rows, and the bounds that
    TRL's loss reads.
    """

    def __init__(self, trainer: Core) -> None:
        self._trainer, self._method = trainer, trainer.args.policy_loss_method
        self._of_step: Surrogate | None = None  # of all rows of the optimizer step under way

    def prepare(self, plan: MicroBatchPlan | None) -> None:
        """Where a method must see the whole optimizer step, show it all rows before the first
        micro-step.

        That is one forward over each of TRL's micro-batches. Where the step is one forward anyway,
        the loss's own will do. Every process must call it.
        """
        trainer, accumulation = self._trainer, self._trainer.current_gradient_accumulation_steps
        if not self._method.spans_optimizer_step:
            return
        if accumulation == 1 and (plan is None or len(plan.parts) == 1):
            self._of_step = None
            return
        if trainer.optimizer_step.micro_step:
            return
        refuse_own_loss(trainer, f"policy_loss={self._method.name} with several micro-batches")
        first = trainer._step % trainer.args.steps_per_generation
        batches = trainer._buffered_inputs[first : first + accumulation]
        inputs = {
            name: torch.cat([batch[name] for batch in batches])
            for name in _READ
            if name in batches[0]
        }
        logps_BT = torch.cat(
            [trainer.forwards.logps(batch, len(batch["advantages"])) for batch in batches]
        )
        self._of_step = self._compute(logps_BT, inputs)
        self._log(self._of_step)

    def rewrite(self, inputs: dict[str, Any], logps_BT: Tensor) -> None:
        """Replace the advantages and bounds that TRL's loss reads after its forward."""
        surrogate = self._of_step
        if surrogate is None:
            surrogate = self._compute(logps_BT, inputs)
            inputs["advantages"] = surrogate.advantages_BT
            self._log(surrogate)
        if surrogate.clip_low is not None and surrogate.clip_high is not None:
            self._trainer.epsilon_low = 1 - surrogate.clip_low
            self._trainer.epsilon_high = surrogate.clip_high - 1

    def context(self) -> dict[str, Any]:
        """Return what the method takes besides tensors and knobs."""
        trainer = self._trainer
        # From the place in the run, so that a resumed one draws the same tokens; the same on every
        # process.
        seed = (
            trainer.args.seed * 2**32 + trainer.state.global_step
        ) * 2**10 + trainer.optimizer_step.micro_step
        context = {
            "world": current_world(),
            "generator": torch.Generator().manual_seed(seed % 2**63),
            "epsilon_low": trainer.epsilon_low,
            "epsilon_high": trainer.epsilon_high,
        }
        return {name: context[name] for name in self._method.context}

    def _compute(self, logps_BT: Tensor, inputs: dict[str, Any]) -> Surrogate:
        mask_BT = loss_mask(inputs)
        old_logps_BT = inputs.get("old_per_token_logps")
        assert self._method.function is not None, "a policy loss has one"
        surrogate: Surrogate = self._method.function(
            logps_BT,
            logps_BT.detach() if old_logps_BT is None else old_logps_BT,
            inputs["advantages"].view(len(mask_BT), -1).expand(mask_BT.shape),
            mask_BT,
            **self.context(),
            **self._trainer.args.knobs(self._method),
        )
        return surrogate

    def _log(self, surrogate: Surrogate) -> None:
        for name, value in surrogate.metrics.items():
            self._trainer.log_train_metric(name, value)
