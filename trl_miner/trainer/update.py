"""The measurement of what an optimizer step did: `log_miner_update`.

# B rows of one of TRL's micro-batches, T padded completion tokens
"""

from typing import Any

import torch
from transformers import TrainerCallback

from ..distributed import accumulation_dtype, current_world
from .gradient_parts import KINDS, GradientMeasurement, GradientParts
from .padding import loss_mask
from .update_metrics import GAINS, PH, adam_denominator, compare_parts, gain_sums, mean_gains, overlap

_OF_GRADIENT = {
    "first_norm": "ph_gradient_norm",
    "other_norm": "other_gradient_norm",
    "share": "ph_gradient_share",
    "cosine": "gradient_cosine",
}
_OF_UPDATE = {"share": "ph_update_share", "cosine": "update_cosine"}


class UpdateMeasurement(TrainerCallback):
    """Measures every `log_miner_update_steps`-th optimizer step of a trainer.

    As a callback it is called between the optimizer's step and the end of its gradients.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._gradient = GradientMeasurement(trainer, "log_miner_update", {PH})

    def measure_gradient(self, inputs: dict[str, Any], *, is_first: bool, is_trimmed: bool) -> None:
        """Add one of TRL's micro-batches, before its loss."""
        if (self._trainer.state.global_step + 1) % self._trainer.args.log_miner_update_steps == 0:
            self._gradient.add(inputs, is_first=is_first, is_trimmed=is_trimmed)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log what was measured of the optimizer step that has just been made. Every process must call it."""
        if (parts := self._gradient.take()) is not None:
            for name, value in {**self._compare_gradients(parts), **self._gains(parts)}.items():
                self._trainer.log_train_metric(f"miner/{name}", value)

    @torch.no_grad()
    def _gains(self, parts: GradientParts) -> dict[str, float]:
        """Return by how much the step has raised log-probs."""
        device = self._trainer.accelerator.device
        sums_52 = torch.zeros(len(GAINS), 2, dtype=accumulation_dtype(device), device=device)
        with self._gradient.leaving_no_trace():
            for batch, before_BT in parts.batches:
                after_BT, _ = self._gradient.logps_without_dropout(batch)
                sums_52 += gain_sums(before_BT, after_BT, batch["advantages"], loss_mask(batch), batch[KINDS])
        return mean_gains(current_world().sum(sums_52))

    def _compare_gradients(self, parts: GradientParts) -> dict[str, float]:
        """Return how both parts of the gradient, and of what the optimizer made of it, relate."""
        device = self._trainer.accelerator.device
        gradients = torch.zeros(3, dtype=accumulation_dtype(device), device=device)
        updates, is_adam = gradients.clone(), True
        for parameter, group, first, other in parts.pairs():
            gradients += overlap(first, other)
            denominator = adam_denominator(self._trainer.optimizer.state.get(parameter, {}), group)
            if denominator is None:
                is_adam = False
            else:
                updates += overlap(first / denominator, other / denominator)
        values = {_OF_GRADIENT[name]: value for name, value in compare_parts(gradients).items()}
        if is_adam:
            compared = compare_parts(updates)
            values |= {_OF_UPDATE[name]: compared[name] for name in _OF_UPDATE if name in compared}
        return values
