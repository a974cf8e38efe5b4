"""The share of all-right and all-wrong prompts in the policy gradient of an optimizer step:
measured, logged, held.

TRL's loss is a function of the log-probs. So it is computed once on log-probs without their graph,
which gives its derivative by the log-prob of each token; then one backward for each of two parts of
the rows starts from the derivatives of its rows. That is exact for every loss. It leaves alone all
that trains: `.grad`, TRL's metrics, the random state.

# N rollouts of the global batch, B rows of a micro-batch, T padded completion tokens
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from ..methods import Estimate, Rollouts
from ..methods.compose import ALL_RIGHT, rows_of
from ..methods.distributed import accumulation_dtype, current_world
from ..methods.dose import DoseState, give_dose, squared_masses, start_dose, steer_share
from ..methods.groups import GroupKinds
from ..methods.method import AdvantageEstimator, Kind
from .config import MinerGRPOConfig
from .core import Core
from .micro_batches import loss_mask
from .row_layout import refuse_own_loss
from .rules import gradients_can_be_measured
from .swaps import holding

# (B,) bool in a batch of TRL's, from the advantages to the loss: the rows of the first part, those
# that `dose_share` acts on, else those of all-right prompts.
IS_FIRST = "miner_is_first_part"
# A `dose_share` is measured in each of the first few steps, as one says little, then seldom.
FIRST_STEPS, EVERY = 8, 25

Gradient = list[Tensor | None]  # this process's, of each trained parameter; None: 0


def dosed_methods(args: MinerGRPOConfig) -> Mapping[Kind, AdvantageEstimator]:
    """Return the methods that `dose_share` acts on, by kind of prompt; none without it."""
    return {} if args.dose_share is None else args.composition.dosed


def with_parts(batch: dict[str, Any], kinds: GroupKinds, args: MinerGRPOConfig) -> dict[str, Any]:
    """Return TRL's batch with the part that each row belongs to."""
    is_first_N = rows_of(kinds, dosed_methods(args) or [ALL_RIGHT])
    return {**batch, IS_FIRST: is_first_N[current_world().local_slice(len(batch["advantages"]))]}


def loss_slopes(trainer: Core, batch: dict[str, Any], weight: float) -> tuple[Tensor, Tensor]:
    """Return (B, T) log-probs of a micro-batch, and the derivative of the policy loss by each of
    them.

    `trainer` is the whole one, as TRL's loss is: it reads the settings and the model.
    """
    seen = list[Tensor]()

    def without_graph(result: tuple[Any, ...]) -> tuple[Any, ...]:
        logps_BT, *rest = result
        seen[:] = logps_BT, logps_BT.detach().requires_grad_()
        return seen[1], *rest

    with holding(trainer, _entropy_bonus_enabled=False, beta=0.0):
        loss = trainer.call_loss(trainer.model, batch, without_graph) * weight
    logps_BT, leaf_BT = seen
    return logps_BT, torch.autograd.grad(loss, leaf_BT)[0]


@torch.no_grad()
def part_products(
    parts: Sequence[Gradient], parameters: Sequence[Tensor]
) -> tuple[float, float, float]:
    """Return of two gradients over all processes |a|^2, |b|^2 and a.b; they are freed on the way.
    Every process must call it."""
    world, device = current_world(), parameters[0].device
    products_3 = torch.zeros(3, dtype=accumulation_dtype(device), device=device)
    for i, parameter in enumerate(parameters):
        means = []
        for part in parts:
            gradient, part[i] = part[i], None
            gradient = torch.zeros_like(parameter) if gradient is None else gradient
            means.append((world.sum(gradient) / world.size).float())  # the processes' mean, as DDP
        a, b = means
        products_3 += torch.stack(
            [(x * y).sum(dtype=products_3.dtype) for x, y in ((a, a), (b, b), (a, b))]
        )
    first, other, both = products_3.tolist()
    return first, other, both


def compare_parts(first_square: float, other_square: float, dot: float) -> dict[str, float]:
    """Return what is logged of two gradients by what `part_products` returns: their L2 norms, the
    first's share of both, and the cosine between them."""
    first_norm, other_norm = math.sqrt(first_square), math.sqrt(other_square)
    metrics = {"miner/ph_gradient_norm": first_norm, "miner/other_gradient_norm": other_norm}
    if first_norm + other_norm > 0:
        metrics["miner/ph_gradient_share"] = first_norm / (first_norm + other_norm)
    if first_norm > 0 and other_norm > 0:
        metrics["miner/gradient_cosine"] = max(-1.0, min(1.0, dot / first_norm / other_norm))
    return metrics


class GradientShare(TrainerCallback):
    """Measures optimizer steps for `log_gradient_share`, and holds `dose_share`.

    It takes the whole trainer, for `loss_slopes`.
    """

    def __init__(self, trainer: Core) -> None:
        self._trainer, args = trainer, trainer.args
        self._credited = dosed_methods(args)
        accelerator = trainer.accelerator
        distribution, precision = accelerator.distributed_type.value, accelerator.mixed_precision
        gradients_can_be_measured(args, distribution=distribution, precision=precision)
        self._dose: dict[str, Any] = {}
        self._reset()

    def _reset(self) -> None:
        # of both parts, in the step under way; None: not measured
        self._parts: list[Gradient] | None = None
        self._masses_2: Tensor | float = 0.0  # `squared_masses` of its rows on this process

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Forget a step that was not finished."""
        settings = self._trainer.args
        names = [name for name in ("dose_share", "log_gradient_share") if getattr(settings, name)]
        refuse_own_loss(self._trainer, " and ".join(names))
        self._reset()

    def add(self, inputs: dict[str, Any], weight: float = 1.0) -> None:
        """Measure a micro-batch before its loss, which counts with this weight, where its step is
        to be measured."""
        trainer, step = self._trainer, self._trainer.state.global_step + 1
        if not (self._is_logged(step) or self._is_steered(step)):
            return
        parameters, is_first_B = self._parameters(), inputs[IS_FIRST]
        if self._parts is None:
            self._parts = [[None] * len(parameters) for _ in range(2)]
        with trainer.catching_metrics(), trainer.undoing_draws():
            logps_BT, slopes_BT = loss_slopes(trainer, inputs, weight)
            for sums, is_part_B in zip(self._parts, (is_first_B, ~is_first_B), strict=True):
                own_BT = slopes_BT * is_part_B.unsqueeze(1)
                if not own_BT.any():
                    continue
                gradients = torch.autograd.grad(
                    logps_BT, parameters, own_BT, retain_graph=True, allow_unused=True
                )
                for i, gradient in enumerate(gradients):
                    before = sums[i]
                    if gradient is not None:
                        sums[i] = gradient if before is None else before + gradient
        self._masses_2 = self._masses_2 + squared_masses(
            inputs["advantages"], loss_mask(inputs), is_first_B
        )

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log what was measured of the step that has just been made, and steer. Every process must
        call it."""
        step, metrics = state.global_step + 1, {}
        if self._credited:
            metrics["dose/scale"] = self._state.scale
        if self._parts is not None:
            first, other, dot = part_products(self._parts, self._parameters())
            compared = compare_parts(first, other, dot)
            if self._is_logged(step):
                metrics |= compared
            if self._is_steered(step):
                masses_2 = current_world().sum(torch.as_tensor(self._masses_2))
                self._state = steer_share(
                    self._state, args.dose_share, (first, other), (*masses_2.tolist(),)
                )
                if "miner/gradient_cosine" in compared:  # both parts are there
                    metrics["dose/share"] = compared["miner/ph_gradient_share"]
                metrics["dose/target"] = args.dose_share
        for name, value in metrics.items():
            self._trainer.log_train_metric(name, value)
        self._reset()

    def give_dose(self, estimate: Estimate, rollouts: Rollouts) -> Estimate:
        """Return the estimate of a generation batch, scaled for `dose_share`. Every process must
        call it."""
        if not self._credited:
            return estimate
        estimate, self._state = give_dose(
            estimate, rollouts, rows_of(rollouts.kinds, self._credited), self._state
        )
        # of caps, which are off: the factor, and the share that comes of it
        names = {
            f"{method.metric_prefix}/{name}"
            for method in self._credited.values()
            for name in ("scale", "l1_share")
        }
        metrics = {
            name: estimate.metrics[name] * self._state.scale
            for name in names & set(estimate.metrics)
        }
        return replace(estimate, metrics={**estimate.metrics, **metrics})

    def _parameters(self) -> list[Tensor]:
        return [
            p
            for group in self._trainer.optimizer.param_groups
            for p in group["params"]
            if p.requires_grad
        ]

    def _is_logged(self, step: int) -> bool:
        every = self._trainer.args.log_gradient_share
        return every > 0 and step % every == 0

    def _is_steered(self, step: int) -> bool:
        return bool(self._credited) and (
            step <= FIRST_STEPS or step % EVERY == 0 or self._state.measurements == 0
        )

    @property
    def _state(self) -> DoseState:
        kept, target = self._dose, self._trainer.args.dose_share
        assert target is not None, "nothing is steered without one"
        return DoseState(**kept["state"]) if kept.get("target") == target else start_dose(target)

    @_state.setter
    def _state(self, state: DoseState) -> None:
        self._dose = {"target": self._trainer.args.dose_share, "state": asdict(state)}

    def state_dict(self) -> dict[str, Any]:
        """Return what a share was asked for, and how far the dose is, as JSON; empty: not begun."""
        return dict(self._dose)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the dose of another training."""
        self._dose = state
