"""The share of all-right and all-wrong prompts in the policy gradient of an optimizer step: measured, logged, held.

TRL's loss is a function of the log-probs. So it is computed once on log-probs without their graph, which gives its
derivative by the log-prob of each token; then one backward per kind of prompt starts from the derivatives of its rows.
That is exact for every loss. It leaves alone all that trains: `.grad`, TRL's metrics, the random state.

# B rows of a micro-batch, T padded completion tokens
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from ..distributed import accumulation_dtype, current_world
from ..heartbeat import beat
from ..methods import Estimate, Rollouts
from ..methods.compose import ALL_RIGHT, ALL_WRONG, rows_of
from ..methods.dose import DoseState, give_dose, squared_masses, start_dose, steer_share
from ..methods.groups import GroupKinds
from ..rules import gradients_can_be_measured
from .hooks import FORWARD, refuse_own_loss
from .padding import loss_mask
from .patching import patched
from .run import RunState

GROUP_KIND = "miner_group_kind"  # (B,) in a batch of TRL's, from the advantages to the loss: `PH`, `HE` or `NH`
PH, HE, NH = KINDS = range(3)
_KIND_OF = {ALL_RIGHT: PH, ALL_WRONG: NH}
# A `dose_share` is measured in each of the first few steps, as one says little, then seldom.
FIRST_STEPS, EVERY = 8, 25

Gradient = list[Tensor | None]  # this process's, of each trained parameter; None: 0


def with_group_kind(batch: dict[str, Any], kinds: GroupKinds) -> dict[str, Any]:
    """Return TRL's batch with the kind of each row's prompt; an unscorable one counts as `HE`."""
    kinds_N = torch.stack([kinds.is_ph_N, kinds.is_grpo_N, kinds.is_nh_N]).int().argmax(dim=0)
    return {**batch, GROUP_KIND: kinds_N[current_world().local_slice(len(batch["advantages"]))]}


def kind_gradients(
    trainer: Any, batch: dict[str, Any], weight: float, parameters: Sequence[Tensor]
) -> Iterator[tuple[int, Sequence[Tensor | None]]]:
    """Yield each kind with rows that the policy loss of a micro-batch moves, and the gradient of these rows.

    `trainer` is the whole one, as TRL's loss is: it reads the settings, the model and the random state.
    """
    with trainer.dropping_metrics(), trainer.undoing_draws():
        logps_BT, slopes_BT = _loss_slopes(trainer, batch, weight)
        for kind in KINDS:
            slopes_of_kind_BT = slopes_BT.masked_fill((batch[GROUP_KIND] != kind).unsqueeze(1), 0.0)
            if slopes_of_kind_BT.any():
                beat()
                found = torch.autograd.grad(
                    logps_BT, parameters, slopes_of_kind_BT, retain_graph=True, allow_unused=True
                )
                yield kind, found


def _loss_slopes(trainer: Any, batch: dict[str, Any], weight: float) -> tuple[Tensor, Tensor]:
    """Return (B, T) log-probs, and the derivative of the policy loss by each of them."""
    forward, seen = getattr(trainer, FORWARD), list[Tensor]()

    def forward_without_graph(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        logps_BT, *rest = forward(*args, **kwargs)
        seen[:] = logps_BT, logps_BT.detach().requires_grad_()
        return seen[1], *rest

    no_bonus, no_penalty = patched(trainer, "_entropy_bonus_enabled", False), patched(trainer, "beta", 0.0)
    with patched(trainer, FORWARD, forward_without_graph), no_bonus, no_penalty:
        loss = trainer.call_loss(trainer.model, batch) * weight
    logps_BT, leaf_BT = seen
    return logps_BT, torch.autograd.grad(loss, leaf_BT)[0]


@torch.no_grad()
def gram_matrix(gradients: Sequence[Gradient], parameters: Sequence[Tensor]) -> Tensor:
    """Return (K, K), the inner products of K gradients over all processes. Every process must call it.

    Each gradient is freed on the way.
    """
    world, device = current_world(), parameters[0].device
    gram_KK = torch.zeros(len(gradients), len(gradients), dtype=accumulation_dtype(device), device=device)
    is_there_KP = world.sum(torch.tensor([[g is not None for g in own] for own in gradients], device=device).int())
    for i, is_there_K in enumerate(is_there_KP.T.tolist()):
        whole = {}
        for kind in (kind for kind, is_there in enumerate(is_there_K) if is_there):
            own, gradients[kind][i] = gradients[kind][i], None
            own = torch.zeros_like(parameters[i]) if own is None else own
            whole[kind] = (world.sum(own) / world.size).float()  # the processes' mean, as DDP
        for a, b in combinations_with_replacement(whole, 2):
            gram_KK[a, b] += (whole[a] * whole[b]).sum(dtype=gram_KK.dtype)
    return gram_KK + gram_KK.triu(1).T


def compare_parts(gram_KK: Tensor, kinds: Collection[int]) -> dict[str, float]:
    """Return the L2 norms of two sums of gradients, the first's share of both norms, and the cosine between them.

    Args:
        gram_KK: From `gram_matrix`.
        kinds: The gradients of the first sum; the others are in the second.
    """
    first, other = [*kinds], [kind for kind in range(len(gram_KK)) if kind not in kinds]
    first_norm, other_norm = (math.sqrt(max(gram_KK[part][:, part].sum().item(), 0.0)) for part in (first, other))
    found = {"first_norm": first_norm, "other_norm": other_norm}
    if first_norm + other_norm > 0:
        found["share"] = first_norm / (first_norm + other_norm)
    if first_norm > 0 and other_norm > 0:
        dot = gram_KK[first][:, other].sum().item()
        found["cosine"] = max(-1.0, min(1.0, dot / first_norm / other_norm))
    return found


class GradientShare(TrainerCallback):
    """Measures optimizer steps for `log_gradient_share`, and holds `dose_share`.

    It takes the whole trainer, for `kind_gradients` and `RunState.of`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer, args = trainer, trainer.args
        names = ("dose_share", "log_gradient_share")
        self._setting = " and ".join(name for name in names if getattr(args, name))
        self._credited = {} if args.dose_share is None else args.composition.dosed
        self._dosed = sorted(_KIND_OF[kind] for kind in self._credited)
        refuse_own_loss(trainer, self._setting)
        accelerator = trainer.accelerator
        distribution, precision = accelerator.distributed_type.value, accelerator.mixed_precision
        gradients_can_be_measured(args, distribution=distribution, precision=precision)
        self._reset()

    def _reset(self) -> None:
        self._gradients: list[Gradient] | None = None  # of each kind, in the step under way; None: not measured
        self._masses_2: Tensor | float = 0.0  # `squared_masses` of its rows on this process

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Forget a step that was not finished."""
        self._reset()

    def add(self, inputs: dict[str, Any], weight: float = 1.0) -> None:
        """Measure a micro-batch before its loss, which counts with this weight, where its step is to be measured."""
        trainer, step = self._trainer, self._trainer.state.global_step + 1
        if not (self._is_logged(step) or self._is_steered(step)):
            return
        parameters = self._parameters()
        if self._gradients is None:
            refuse_own_loss(trainer, self._setting)  # again: an instance may have got a method of its own
            self._gradients = [[None] * len(parameters) for _ in KINDS]
        for kind, found in kind_gradients(trainer, inputs, weight, parameters):
            sums = self._gradients[kind]
            for i, gradient in enumerate(found):
                before = sums[i]
                if gradient is not None:
                    sums[i] = gradient if before is None else before + gradient
        is_dosed_B = torch.isin(inputs[GROUP_KIND], torch.tensor(self._dosed, device=inputs[GROUP_KIND].device))
        self._masses_2 = self._masses_2 + squared_masses(inputs["advantages"], loss_mask(inputs), is_dosed_B)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log what was measured of the step that has just been made, and steer. Every process must call it."""
        step, metrics = state.global_step + 1, {}
        if self._dosed:
            metrics["dose/scale"] = self._state.scale
        if self._gradients is not None:
            gram_33 = gram_matrix(self._gradients, self._parameters())
            if self._is_logged(step):
                first = {"first_norm": "ph_gradient_norm", "share": "ph_gradient_share"}
                names = {**first, "other_norm": "other_gradient_norm", "cosine": "gradient_cosine"}
                found = compare_parts(gram_33, [PH])
                metrics |= {f"miner/{name}": found[part] for part, name in names.items() if part in found}
            if self._is_steered(step):
                metrics |= self._steer(gram_33, args.dose_share)
        for name, value in metrics.items():
            self._trainer.log_train_metric(name, value)
        self._reset()

    def give_dose(self, estimate: Estimate, rollouts: Rollouts) -> Estimate:
        """Return the estimate of a generation batch, scaled for `dose_share`. Every process must call it."""
        if not self._dosed:
            return estimate
        estimate, self._state = give_dose(estimate, rollouts, rows_of(rollouts.kinds, self._credited), self._state)
        scales = {f"{method.metric_prefix}/scale" for method in self._credited.values()} & set(estimate.metrics)
        metrics = {name: estimate.metrics[name] * self._state.scale for name in scales}  # of caps, which are off
        return replace(estimate, metrics={**estimate.metrics, **metrics})

    def _steer(self, gram_33: Tensor, target: float) -> dict[str, float]:
        found, masses_2 = compare_parts(gram_33, self._dosed), current_world().sum(torch.as_tensor(self._masses_2))
        squares = found["first_norm"] ** 2, found["other_norm"] ** 2
        self._state = steer_share(self._state, target, squares, (*masses_2.tolist(),))
        share = {"dose/share": found["share"]} if "cosine" in found else {}  # where both parts are there
        return {**share, "dose/target": target}

    def _parameters(self) -> list[Tensor]:
        return [p for group in self._trainer.optimizer.param_groups for p in group["params"] if p.requires_grad]

    def _is_logged(self, step: int) -> bool:
        every = self._trainer.args.log_gradient_share
        return every > 0 and step % every == 0

    def _is_steered(self, step: int) -> bool:
        return bool(self._dosed) and (step <= FIRST_STEPS or step % EVERY == 0 or self._state.measurements == 0)

    @property
    def _state(self) -> DoseState:
        kept, target = RunState.of(self._trainer).dose, self._trainer.args.dose_share
        return DoseState(**kept["state"]) if kept.get("target") == target else start_dose(target)

    @_state.setter
    def _state(self, state: DoseState) -> None:
        RunState.of(self._trainer).dose = {"target": self._trainer.args.dose_share, "state": asdict(state)}
