"""The measurement of what an optimizer step did: `log_miner_update`.

TRL's loss is a sum over rows of a function of their log-probs. So one evaluation of it, on log-probs found without a
graph, gives the derivative of the loss by each token's log-prob; the rows of each kind then go through the model once,
and these derivatives start their backward. That is exact for every loss, and leaves alone all that trains: `.grad`,
TRL's metrics and the random state.

# B rows of one of TRL's micro-batches, K of a chunk of them, T padded completion tokens
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor
from transformers import TrainerCallback

from ..distributed import accumulation_dtype, current_world
from ..heartbeat import beat
from ..methods.groups import GroupKinds
from .forwards import is_multimodal, select_rows
from .micro_batches import fewest_micro_batches, partition
from .padding import loss_mask
from .row_layout import uses_liger_loss
from .update_metrics import GAINS, PH, adam_denominator, compare_parts, gain_sums, mean_gains, overlap, row_kinds

KINDS = "miner_kinds"  # (B,) in a batch of TRL's, from the advantages to the loss
_SHARDED = {DistributedType.DEEPSPEED, DistributedType.FSDP, DistributedType.MEGATRON_LM}
_OTHER_TERMS = ("beta", "_entropy_bonus_enabled")  # of the loss; the router's is no function of log-probs
_OF_GRADIENT = {
    "ph_norm": "ph_gradient_norm",
    "other_norm": "other_gradient_norm",
    "share": "ph_gradient_share",
    "cosine": "gradient_cosine",
}
_OF_UPDATE = {"share": "ph_update_share", "cosine": "update_cosine"}


@dataclass
class StepMeasurement:
    """The measurement of one optimizer step."""

    parameters: list[tuple[Tensor, dict[str, Any]]]  # those that are trained, each with its group in the optimizer
    ph: list[Tensor | None]  # this process's part of each gradient from PH rows; None: 0
    other: list[Tensor | None]  # from the other rows
    # TRL's micro-batches so far, with the log-probs before the step
    batches: list[tuple[dict[str, Any], Tensor]] = field(default_factory=list)


class UpdateMeasurement(TrainerCallback):
    """Measures every `log_miner_update_steps`-th optimizer step of a trainer.

    As a callback it is called between the optimizer's step and the end of its gradients.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.step: StepMeasurement | None = None  # the one being measured
        check_measurable(trainer)

    @staticmethod
    def mark(batch: dict[str, Any], kinds: GroupKinds) -> dict[str, Any]:
        """Return TRL's batch with the kind of each of its rows."""
        return {**batch, KINDS: row_kinds(kinds)[current_world().local_slice(len(batch["advantages"]))]}

    def measure_gradient(self, inputs: dict[str, Any], *, micro_step: int, is_trimmed: bool) -> None:
        """Add one of TRL's micro-batches, before its loss."""
        trainer = self._trainer
        if (trainer.state.global_step + 1) % trainer.args.log_miner_update_steps:
            return
        if micro_step == 0:
            groups = trainer.optimizer.param_groups
            parameters = [(p, group) for group in groups for p in group["params"] if p.requires_grad]
            self.step = StepMeasurement(parameters, [None] * len(parameters), [None] * len(parameters))
        if KINDS not in inputs:  # rollouts of a checkpoint that was written without the option
            self.step = None
        if self.step is not None:
            is_padded = not is_trimmed and trainer.args.length_aware_training
            self._add_batch(self.step, self._trainer.forwards.layout.trim.trim(inputs) if is_padded else inputs)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.log()

    @torch.no_grad()
    def log(self) -> None:
        """Log what was measured of the optimizer step that has just been made. Every process must call it."""
        step, self.step = self.step, None
        if step is None:
            return
        values = self._compare_gradients(step)
        device = self._trainer.accelerator.device
        sums_52 = torch.zeros(len(GAINS), 2, dtype=accumulation_dtype(device), device=device)
        with self._leaving_no_trace():
            for batch, before_BT in step.batches:
                after_BT, _ = self._logps_without_dropout(batch)
                sums_52 += gain_sums(before_BT, after_BT, batch["advantages"], loss_mask(batch), batch[KINDS])
        values |= mean_gains(current_world().sum(sums_52))
        for name, value in values.items():
            self._trainer.log_train_metric(f"miner/{name}", value)

    def _add_batch(self, step: StepMeasurement, batch: dict[str, Any]) -> None:
        with self._leaving_no_trace():
            logps_BT, entropies_BT = self._logps_without_dropout(batch)
            slopes_BT = self._loss_slopes(batch, logps_BT, entropies_BT)
            is_ph_B = batch[KINDS] == PH
            has_slope_B = (slopes_BT != 0).any(dim=1)
            for total, is_row_B in ((step.ph, is_ph_B), (step.other, ~is_ph_B)):
                for rows_K in self._chunks(batch, (is_row_B & has_slope_B).nonzero().squeeze(1)):
                    self._add_gradient(total, step.parameters, batch, rows_K, slopes_BT)
        step.batches.append((batch, logps_BT))

    @contextmanager
    def _leaving_no_trace(self) -> Iterator[None]:
        """Drop metrics and random draws meanwhile, and reduce the loss to its policy term."""
        trainer = self._trainer
        kept = {name: getattr(trainer, name) for name in _OTHER_TERMS if hasattr(trainer, name)}
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
        parameters: list[tuple[Tensor, dict[str, Any]]],
        batch: dict[str, Any],
        rows_K: Tensor,
        slopes_BT: Tensor,
    ) -> None:
        beat()
        logps_KT = self._trainer.forwards.policy(self._take(batch, rows_K))[0]
        slopes_KT = slopes_BT[rows_K, : logps_KT.shape[1]].to(logps_KT.dtype)
        gradients = torch.autograd.grad(logps_KT, [p for p, _ in parameters], slopes_KT, allow_unused=True)
        for i, gradient in enumerate(gradients):
            before = total[i]
            if gradient is not None:
                total[i] = gradient if before is None else before + gradient

    def _compare_gradients(self, step: StepMeasurement) -> dict[str, float]:
        """Return how both parts of the gradient, and of what the optimizer made of it, relate."""
        world, device = current_world(), self._trainer.accelerator.device
        parts = step.ph, step.other
        has_part_2P = torch.tensor([[g is not None for g in part] for part in parts], device=device).int()
        has_part_P2 = (world.sum(has_part_2P) > 0).T.tolist()
        gradients = torch.zeros(3, dtype=accumulation_dtype(device), device=device)
        updates, is_adam = gradients.clone(), True
        for i, (parameter, group) in enumerate(step.parameters):
            if not any(has_part_P2[i]):
                continue
            pair = []
            for part, is_there in zip(parts, has_part_P2[i], strict=True):
                own, part[i] = part[i], None
                gradient = torch.zeros_like(parameter) if own is None else own
                pair.append(world.sum(gradient) / world.size if is_there else gradient)  # the processes' mean, as DDP
            gradients += overlap(*pair)
            denominator = adam_denominator(self._trainer.optimizer.state.get(parameter, {}), group)
            if denominator is None:
                is_adam = False
            else:
                updates += overlap(*(gradient / denominator for gradient in pair))
        values = {_OF_GRADIENT[name]: value for name, value in compare_parts(gradients).items()}
        if is_adam:
            compared = compare_parts(updates)
            values |= {_OF_UPDATE[name]: compared[name] for name in _OF_UPDATE if name in compared}
        return values


def check_measurable(trainer: Any) -> None:
    """Refuse a launch or a configuration whose optimizer steps cannot be measured."""
    reason, args = None, trainer.args
    checkpointing = args.gradient_checkpointing_kwargs or {}
    if trainer.accelerator.distributed_type in _SHARDED:
        kind = trainer.accelerator.distributed_type.value
        reason = f"needs every weight and its gradient on each process: got {kind}. Launch without it"
    elif uses_liger_loss(trainer):
        reason = "does not reach Liger's loss: got use_liger_kernel=True with TRL below 1.14. Leave that out"
    elif trainer.accelerator.mixed_precision == "fp16":
        reason = "does not follow the loss scaling of fp16: got fp16=True. Use bf16"
    elif args.gradient_checkpointing and checkpointing.get("use_reentrant"):
        reason = "takes gradients by torch.autograd.grad, which reentrant checkpointing does not support: got "
        reason += "gradient_checkpointing_kwargs={'use_reentrant': True}. Set it to False"
    if reason:
        raise ValueError(f"log_miner_update {reason}, or leave log_miner_update out.")
