"""The gradient of an optimizer step's policy loss in two parts: of rows of some kinds of prompts, and of the others.

TRL's loss is a sum over rows of a function of their log-probs. So one evaluation of it, on log-probs found without a
graph, gives the derivative of the loss by each token's log-prob; the rows of each part then go through the model once,
and these derivatives start their backward. That is exact for every loss, and leaves alone all that trains: `.grad`,
TRL's metrics and the random state.

# B rows of one of TRL's micro-batches, K of a chunk of them, T padded completion tokens
"""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor

from ..distributed import accumulation_dtype, current_world
from ..heartbeat import beat
from ..methods.groups import GroupKinds
from .hooks import refuse_own_loss
from .micro_batches import fewest_micro_batches, partition
from .scoring import is_multimodal, select_rows

KINDS = "miner_kinds"  # (B,) in a batch of TRL's, from the advantages to the loss: `PH`, `HE` or `NH`
PH, HE, NH = range(3)
SHARDED = {DistributedType.DEEPSPEED, DistributedType.FSDP, DistributedType.MEGATRON_LM}
NOT_IN_FP16 = "does not follow the loss scaling of fp16: got fp16=True. Use bf16"
_OTHER_TERMS = ("beta", "_entropy_bonus_enabled")  # of the loss; the router's is no function of log-probs


def row_kinds(kinds: GroupKinds) -> Tensor:
    """Return (N,) of `PH`, `HE` (or unscorable), `NH`: one number per row, which a batch can carry along."""
    return torch.stack([kinds.is_ph_N, kinds.is_grpo_N, kinds.is_nh_N]).int().argmax(dim=0)


def mark(batch: dict[str, Any], kinds: GroupKinds) -> dict[str, Any]:
    """Return TRL's batch with the kind of each of its rows."""
    return {**batch, KINDS: row_kinds(kinds)[current_world().local_slice(len(batch["advantages"]))]}


def overlap(first: Tensor, other: Tensor) -> Tensor:
    """Return (3,), the sums |first|^2, |other|^2 and <first, other> over the elements of two tensors of one shape."""
    wide = accumulation_dtype(first.device)
    first, other = first.float(), other.float()
    return torch.stack([(a * b).sum(dtype=wide) for a, b in ((first, first), (other, other), (first, other))])


def compare_parts(overlap_3: Tensor) -> dict[str, float]:
    """Return two vectors' L2 norms, the first's share of the sum, and their cosine, from `overlap`."""
    first_square, other_square, dot = overlap_3.tolist()
    first_norm, other_norm = math.sqrt(first_square), math.sqrt(other_square)
    values = {"first_norm": first_norm, "other_norm": other_norm}
    if first_norm + other_norm > 0:
        values["share"] = first_norm / (first_norm + other_norm)
    if first_norm > 0 and other_norm > 0:
        values["cosine"] = max(-1.0, min(1.0, dot / first_norm / other_norm))
    return values


@dataclass
class GradientParts:
    """Both parts of one optimizer step's gradient."""

    parameters: list[Tensor]  # those that are trained
    first: list[Tensor | None]  # this process's part of each gradient from rows of the kinds; None: 0
    other: list[Tensor | None]  # from the other rows
    batches: list[dict[str, Any]] = field(default_factory=list)  # TRL's micro-batches so far

    @torch.no_grad()
    def overlap(self) -> Tensor:
        """Return (3,), `overlap` of both parts over all processes; each gradient is freed on the way. Every process
        must call it."""
        world, parts, device = current_world(), (self.first, self.other), self.parameters[0].device
        sums_3 = torch.zeros(3, dtype=accumulation_dtype(device), device=device)
        has_part_2P = torch.tensor([[g is not None for g in part] for part in parts], device=device).int()
        has_part_P2 = (world.sum(has_part_2P) > 0).T.tolist()
        for i, parameter in enumerate(self.parameters):
            if not any(has_part_P2[i]):
                continue
            pair = []
            for part, is_there in zip(parts, has_part_P2[i], strict=True):
                own, part[i] = part[i], None
                gradient = torch.zeros_like(parameter) if own is None else own
                pair.append(world.sum(gradient) / world.size if is_there else gradient)  # the processes' mean, as DDP
            sums_3 += overlap(*pair)
        return sums_3


class GradientMeasurement:
    """Measures the optimizer steps of a trainer that it is asked for.

    Args:
        trainer: The trainer.
        setting: What asks for it, for errors.
        kinds: The kinds of rows, of those of `row_kinds`, that are the first part.
    """

    def __init__(self, trainer: Any, setting: str, kinds: Collection[int]) -> None:
        self._trainer, self._kinds = trainer, torch.tensor(sorted(kinds), device=trainer.accelerator.device)
        self._parts: GradientParts | None = None  # of the step being measured
        self._setting = setting
        check_measurable(trainer, setting)

    def add(self, inputs: dict[str, Any], *, is_first: bool, is_trimmed: bool) -> None:
        """Add one of TRL's micro-batches, before its loss; the first of an optimizer step begins a measurement."""
        trainer = self._trainer
        if is_first:
            refuse_own_loss(trainer, self._setting)  # again: an instance may have got a method of its own
            groups = trainer.optimizer.param_groups
            parameters = [p for group in groups for p in group["params"] if p.requires_grad]
            self._parts = GradientParts(parameters, [None] * len(parameters), [None] * len(parameters))
        if KINDS not in inputs:  # rollouts of a checkpoint that was written without the option
            self._parts = None
        if self._parts is not None:
            is_padded = not is_trimmed and trainer.args.length_aware_training
            self._add_batch(self._parts, trainer.forwards.layout.trim.trim(inputs) if is_padded else inputs)

    def take(self) -> GradientParts | None:
        """Return what was measured, once; None: nothing."""
        parts, self._parts = self._parts, None
        return parts

    def _add_batch(self, step: GradientParts, batch: dict[str, Any]) -> None:
        with self._leaving_no_trace():
            logps_BT, entropies_BT = self._logps_without_dropout(batch)
            slopes_BT = self._loss_slopes(batch, logps_BT, entropies_BT)
            is_first_B = torch.isin(batch[KINDS], self._kinds)
            has_slope_B = (slopes_BT != 0).any(dim=1)
            for total, is_row_B in ((step.first, is_first_B), (step.other, ~is_first_B)):
                for rows_K in self._chunks(batch, (is_row_B & has_slope_B).nonzero().squeeze(1)):
                    self._add_gradient(total, step.parameters, batch, rows_K, slopes_BT)
        step.batches.append(batch)

    @contextmanager
    def _leaving_no_trace(self) -> Iterator[None]:
        """Drop metrics and random draws meanwhile, and reduce the loss to its policy term."""
        trainer = self._trainer
        kept = {name: getattr(trainer, name) for name in _OTHER_TERMS}
        for name in kept:
            setattr(trainer, name, 0.0)
        try:
            with trainer.dropping_metrics(), trainer.undoing_draws():
                yield
        finally:
            for name, value in kept.items():
                setattr(trainer, name, value)

    @torch.no_grad()
    def _logps_without_dropout(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return (B, T) log-probs under the policy as it is, and entropies where the loss reads them, else zeros."""
        trainer = self._trainer
        rows_B = torch.arange(len(batch["completion_ids"]), device=batch["completion_ids"].device)
        reads_entropies = trainer.top_entropy_quantile < 1.0
        values_2BT: Tensor | None = None
        with trainer.evaluating():
            for rows_K in self._chunks(batch, rows_B):
                beat()
                rows = self._take(batch, rows_K)
                logps_KT, entropies_KT, *_ = trainer.forwards.policy(rows, compute_entropy=reads_entropies)
                if values_2BT is None:
                    values_2BT = logps_KT.new_zeros(2, *batch["completion_ids"].shape)
                values_2BT[0, rows_K, : logps_KT.shape[1]] = logps_KT
                if reads_entropies:
                    values_2BT[1, rows_K, : logps_KT.shape[1]] = entropies_KT.to(logps_KT.dtype)
        assert values_2BT is not None, "a micro-batch has rows"
        return values_2BT[0], values_2BT[1]

    def _loss_slopes(self, batch: dict[str, Any], logps_BT: Tensor, entropies_BT: Tensor) -> Tensor:
        """Return (B, T), the derivative of TRL's loss by each log-prob. A row's depend on no other row's advantages,
        or, with `policy_loss`, in a way that is settled before the loss."""
        trainer = self._trainer
        trainer.prepare_loss()
        logps_BT = logps_BT.detach().requires_grad_()
        replayed = logps_BT, entropies_BT, logps_BT.new_zeros(())
        loss = trainer.call_loss(trainer.model, batch, replayed=replayed)
        (slopes_BT,) = torch.autograd.grad(loss, logps_BT)
        return slopes_BT

    def _chunks(self, batch: dict[str, Any], rows_K: Tensor) -> Iterator[Tensor]:
        """Yield rows of a micro-batch that go through the model together: no more than in training."""
        budget = self._trainer.forwards.layout.token_budget
        if len(rows_K) == 0:
            return
        if budget is None or is_multimodal(batch):
            yield rows_K
            return
        lengths_K2 = self._trainer.forwards.layout.trim.lengths(batch)[rows_K.cpu().numpy()]
        for part in partition(lengths_K2, fewest_micro_batches(lengths_K2, budget), max_tokens=budget):
            yield rows_K[part]

    def _take(self, batch: dict[str, Any], rows_K: Tensor) -> dict[str, Any]:
        taken = select_rows(batch, rows_K)
        is_trimmed = self._trainer.args.length_aware_training and not is_multimodal(taken)
        return self._trainer.forwards.layout.trim.trim(taken) if is_trimmed else taken

    def _add_gradient(
        self,
        total: list[Tensor | None],
        parameters: list[Tensor],
        batch: dict[str, Any],
        rows_K: Tensor,
        slopes_BT: Tensor,
    ) -> None:
        beat()
        logps_KT = self._trainer.forwards.policy(self._take(batch, rows_K))[0]
        slopes_KT = slopes_BT[rows_K, : logps_KT.shape[1]].to(logps_KT.dtype)
        gradients = torch.autograd.grad(logps_KT, parameters, slopes_KT, allow_unused=True)
        for i, gradient in enumerate(gradients):
            before = total[i]
            if gradient is not None:
                total[i] = gradient if before is None else before + gradient


def needs_whole_gradients(kind: str) -> str:
    """Return what an error says of a launch that shards weights or gradients."""
    return f"needs every weight and its gradient on each process: got {kind}. Launch without it"


def check_measurable(trainer: Any, setting: str) -> None:
    """Refuse a launch or a configuration whose optimizer steps cannot be measured."""
    refuse_own_loss(trainer, setting)
    reason, args = None, trainer.args
    checkpointing = args.gradient_checkpointing_kwargs or {}
    if trainer.accelerator.distributed_type in SHARDED:
        reason = needs_whole_gradients(trainer.accelerator.distributed_type.value)
    elif trainer.accelerator.mixed_precision == "fp16":
        reason = NOT_IN_FP16
    elif args.gradient_checkpointing and checkpointing.get("use_reentrant"):
        reason = "takes gradients by torch.autograd.grad, which reentrant checkpointing does not support: got "
        reason += "gradient_checkpointing_kwargs={'use_reentrant': True}. Set it to False"
    if reason:
        raise ValueError(f"{setting} {reason}, or leave {setting} out.")
