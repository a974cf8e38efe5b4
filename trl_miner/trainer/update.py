"""`log_miner_update`: the share of all-right (PH) prompts in the gradient of an optimizer step."""

from typing import Any

from transformers import TrainerCallback

from .gradient_parts import PH, GradientMeasurement, compare_parts

_METRICS = {
    "first_norm": "ph_gradient_norm",
    "other_norm": "other_gradient_norm",
    "share": "ph_gradient_share",
    "cosine": "gradient_cosine",
}


class UpdateMeasurement(TrainerCallback):
    """Measures every `log_miner_update_steps`-th optimizer step of a trainer."""

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
            for name, value in compare_parts(parts.overlap()).items():
                self._trainer.log_train_metric(f"miner/{_METRICS[name]}", value)
