"""`dose`: scales the advantages of credited rows, as what it measures of the training says."""

from dataclasses import asdict, replace
from typing import Any

import torch
from transformers import TrainerCallback

from ..distributed import current_world
from ..methods import Estimate, Rollouts
from ..methods.compose import ALL_RIGHT, ALL_WRONG, rows_of
from ..methods.dose import DoseState, give_dose, squared_masses, start_dose, steer_share
from .checkpointing import RunState
from .gradient_parts import KINDS, NH, PH, GradientMeasurement, GradientParts, compare_parts
from .padding import loss_mask

FIRST_STEPS = 8  # are all measured: one says little


class Dose(TrainerCallback):
    """Steers the dose of a trainer: `dose: gradient`.

    As a callback it is called between the optimizer's step and the end of its gradients.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer, args = trainer, trainer.args
        self._credited = args.composition.dosed
        device = trainer.accelerator.device
        rows = {ALL_RIGHT: PH, ALL_WRONG: NH}
        self._rows = torch.tensor([rows[kind] for kind in self._credited], device=device)
        self.gradient = GradientMeasurement(trainer, "dose: gradient", self._rows)

    def give(self, estimate: Estimate, rollouts: Rollouts) -> Estimate:
        """Return the estimate of a generation batch with its dose. Every process must call it."""
        is_credited_N = rows_of(rollouts.kinds, self._credited)
        estimate, self._state = give_dose(estimate, rollouts, is_credited_N, self._state)
        scales = {f"{method.metric_prefix}/scale" for method in self._credited.values()} & set(estimate.metrics)
        metrics = {name: estimate.metrics[name] * self._state.scale for name in scales}  # of caps, which are off
        return replace(estimate, metrics={**estimate.metrics, **metrics})

    def measure_gradient(self, inputs: dict[str, Any], *, is_first: bool, is_trimmed: bool) -> None:
        """Add one of TRL's micro-batches, before its loss, in an optimizer step that is measured."""
        step = self._trainer.state.global_step + 1
        is_due = is_measured(step, self._trainer.args.dose_steps) or self._state.measurements == 0
        if is_due:
            self.gradient.add(inputs, is_first=is_first, is_trimmed=is_trimmed)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the dose of the optimizer step that has just been made, and steer. Every process must call it."""
        log = self._trainer.log_train_metric
        log("dose/scale", self._state.scale)
        parts = self.gradient.take()
        measured = {} if parts is None else self._steer_by_share(parts)
        for name, value in measured.items():
            log(f"dose/{name}", value)
        if measured:
            log("dose/target", args.dose_level)

    @property
    def _state(self) -> DoseState:
        kept, args = RunState.of(self._trainer).dose, self._trainer.args
        if (kept.get("dose"), kept.get("target")) != (args.dose, args.dose_level):  # none, or another run's
            return start_dose(args.dose_level)
        return DoseState(**kept["state"])

    @_state.setter
    def _state(self, state: DoseState) -> None:
        args = self._trainer.args
        RunState.of(self._trainer).dose = {"dose": args.dose, "target": args.dose_level, "state": asdict(state)}

    def _steer_by_share(self, parts: GradientParts) -> dict[str, float]:
        gradients_3 = parts.overlap()
        masses_2 = torch.zeros_like(gradients_3[:2])
        for batch in parts.batches:
            masses_2 += squared_masses(batch["advantages"], loss_mask(batch), torch.isin(batch[KINDS], self._rows))
        masses_2 = current_world().sum(masses_2)
        squares = (*gradients_3[:2].tolist(),), (*masses_2.tolist(),)
        self._state = steer_share(self._state, self._trainer.args.dose_level, *squares)
        compared = compare_parts(gradients_3)
        return {"share": compared["share"]} if "cosine" in compared else {}  # with both parts there


def is_measured(step: int, interval: int) -> bool:
    """Return whether an optimizer step, counted from 1, is measured: the first few, then every `interval`-th."""
    return step <= FIRST_STEPS or step % interval == 0
