"""What an optimizer step did: `log_miner_update`.

TRL's loss is a sum over rows of a function of their log-probs. So one evaluation of it, on log-probs found without a
graph, says what each token's log-prob is worth to the loss; the rows of each kind then go through the model once, with
these numbers as the gradient to begin with. That is exact for every loss, and nothing that trains is touched: neither
`.grad`, nor TRL's metrics, nor the random state.

# B rows of one of TRL's micro-batches, K of a chunk of them, T padded completion tokens
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor
from transformers import TrainerCallback

from ..distributed import accumulation_dtype, current_world
from .forwards import is_multimodal, select_rows
from .micro_batches import fewest_pieces, loss_mask, partition
from .step import SteppingTrainer
from .update_metrics import GAINS, PH, adam_denominator, compare_parts, gain_sums, mean_gains, overlap

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
class _Measurement:
    """Of one optimizer step.

    Attributes:
        parameters: Those that are trained, each with its group in the optimizer.
        ph, other: This process's part of the gradient of each, from PH rows and from the others; None: 0.
        batches: TRL's micro-batches so far, with the log-probs before the step.
    """

    parameters: list[tuple[Tensor, dict[str, Any]]]
    ph: list[Tensor | None]
    other: list[Tensor | None]
    batches: list[tuple[dict[str, Any], Tensor]] = field(default_factory=list)


class MeasuringTrainer(SteppingTrainer):
    """TRL's trainer, which finds out what its optimizer steps did where `log_miner_update` asks for it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._measurement: _Measurement | None = None
        if self.args.log_miner_update:
            self._check_measurable()
            self.add_callback(_AfterOptimizerStep(self))

    def _check_measurable(self) -> None:
        reason = None
        checkpointing = self.args.gradient_checkpointing_kwargs or {}
        if self.accelerator.distributed_type in _SHARDED:
            kind = self.accelerator.distributed_type.value
            reason = f"needs every weight and its gradient on each process: got {kind}. Launch without it"
        elif getattr(self, "use_liger_kernel", False):  # until TRL 1.13, another loss than `_compute_loss`
            reason = "does not reach Liger's loss: got use_liger_kernel=True with TRL below 1.14. Leave that out"
        elif self.accelerator.mixed_precision == "fp16":
            reason = "does not follow the loss scaling of fp16: got fp16=True. Use bf16"
        elif self.args.gradient_checkpointing and checkpointing.get("use_reentrant"):
            reason = "takes gradients by torch.autograd.grad, which reentrant checkpointing does not support: got "
            reason += "gradient_checkpointing_kwargs={'use_reentrant': True}. Set it to False"
        if reason:
            raise ValueError(f"log_miner_update {reason}, or leave log_miner_update out.")

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        args = self.args
        is_due = args.log_miner_update and (self.state.global_step + 1) % args.log_miner_update_steps == 0
        if not is_due or not self.model.training:
            return inputs
        if self._micro_step == 0:
            groups = self.optimizer.param_groups
            parameters = [(p, group) for group in groups for p in group["params"] if p.requires_grad]
            self._measurement = _Measurement(parameters, [None] * len(parameters), [None] * len(parameters))
        if KINDS not in inputs:  # rollouts of a checkpoint that was written without the option
            self._measurement = None
        if self._measurement is not None:
            self._measure_gradient(inputs, self._measurement)
        return inputs

    def _measure_gradient(self, inputs: dict[str, Any], measurement: _Measurement) -> None:
        # A window goes its own way, and leaves TRL's micro-batch as it was.
        is_padded = self._window is not None and self.args.length_aware_training
        batch = self._cut.trim(inputs) if is_padded else inputs
        with self._aside():
            logps_BT, entropies_BT = self._logps_without_dropout(batch)
            worth_BT = self._worth_of_logps(batch, logps_BT, entropies_BT)
            is_ph_B = batch[KINDS] == PH
            has_worth_B = (worth_BT != 0).any(dim=1)
            for total, is_row_B in ((measurement.ph, is_ph_B), (measurement.other, ~is_ph_B)):
                for rows_K in self._chunks(batch, (is_row_B & has_worth_B).nonzero().squeeze(1)):
                    self._add_gradient(total, measurement.parameters, batch, rows_K, worth_BT)
        measurement.batches.append((batch, logps_BT))

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """What happens meanwhile leaves no trace; and the loss has its policy term alone."""
        metrics, self._metrics = self._metrics, {mode: defaultdict(list) for mode in self._metrics}
        kept = {name: getattr(self, name) for name in _OTHER_TERMS if hasattr(self, name)}
        for name in kept:
            setattr(self, name, 0.0)
        device = self.accelerator.device
        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                yield
        finally:
            self._metrics = metrics
            for name, value in kept.items():
                setattr(self, name, value)

    @torch.no_grad()
    def _logps_without_dropout(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """(B, T) log-probs under the policy as it is, and entropies where the loss looks at them, else zeros."""
        rows_B = torch.arange(len(batch["completion_ids"]), device=batch["completion_ids"].device)
        has_entropies = self.top_entropy_quantile < 1.0
        found_2BT: Tensor | None = None
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            for rows_K in self._chunks(batch, rows_B):
                self._watchdog.beat()
                logps_KT, entropies_KT, *_ = self._say(self._take(batch, rows_K), compute_entropy=has_entropies)
                if found_2BT is None:
                    found_2BT = logps_KT.new_zeros(2, *batch["completion_ids"].shape)
                found_2BT[0, rows_K, : logps_KT.shape[1]] = logps_KT
                if has_entropies:
                    found_2BT[1, rows_K, : logps_KT.shape[1]] = entropies_KT.to(logps_KT.dtype)
        finally:
            for module, mode in modes.items():
                module.training = mode
        assert found_2BT is not None, "a micro-batch has rows"
        return found_2BT[0], found_2BT[1]

    def _worth_of_logps(self, batch: dict[str, Any], logps_BT: Tensor, entropies_BT: Tensor) -> Tensor:
        """(B, T): the derivative of TRL's loss by each log-prob. A row's depend on no other row's advantages, or, with
        `policy_loss`, in a way that is settled before the loss."""
        if self.args.policy_loss == "bapo":
            self._find_bounds()
        logps_BT = logps_BT.detach().requires_grad_()
        self._replayed = (logps_BT, entropies_BT, logps_BT.new_zeros(()))
        try:
            loss = self._compute_policy_loss(self.model, batch)
        finally:
            self._replayed = None
        (worth_BT,) = torch.autograd.grad(loss, logps_BT)
        return worth_BT

    def _chunks(self, batch: dict[str, Any], rows_K: Tensor) -> Iterator[Tensor]:
        """Rows of a micro-batch that go through the model together: no more than go through it in training."""
        budget = self.args.max_tokens_per_micro_batch
        if len(rows_K) == 0:
            return
        if budget is None or not self._moves_rows or is_multimodal(batch):
            yield rows_K
            return
        lengths_K2 = self._cut.lengths(batch)[rows_K.cpu().numpy()]
        for part in partition(lengths_K2, fewest_pieces(lengths_K2, budget), max_tokens=budget):
            yield rows_K[part]

    def _take(self, batch: dict[str, Any], rows_K: Tensor) -> dict[str, Any]:
        taken = select_rows(batch, rows_K)
        return self._cut.trim(taken) if self.args.length_aware_training and not is_multimodal(taken) else taken

    def _add_gradient(
        self,
        total: list[Tensor | None],
        parameters: list[tuple[Tensor, dict[str, Any]]],
        batch: dict[str, Any],
        rows_K: Tensor,
        worth_BT: Tensor,
    ) -> None:
        self._watchdog.beat()
        logps_KT = self._say(self._take(batch, rows_K))[0]
        worth_KT = worth_BT[rows_K, : logps_KT.shape[1]].to(logps_KT.dtype)
        found = torch.autograd.grad(logps_KT, [p for p, _ in parameters], worth_KT, allow_unused=True)
        for i, gradient in enumerate(found):
            before = total[i]
            if gradient is not None:
                total[i] = gradient if before is None else before + gradient

    @torch.no_grad()
    def log_update(self) -> None:
        """Log what was measured of the optimizer step that has just been made. Every process calls."""
        measurement, self._measurement = self._measurement, None
        if measurement is None:
            return
        values = self._compare_gradients(measurement)
        wide = accumulation_dtype(self.accelerator.device)
        sums_52 = torch.zeros(len(GAINS), 2, dtype=wide, device=self.accelerator.device)
        with self._aside():
            for batch, before_BT in measurement.batches:
                after_BT, _ = self._logps_without_dropout(batch)
                sums_52 += gain_sums(before_BT, after_BT, batch["advantages"], loss_mask(batch), batch[KINDS])
        values |= mean_gains(current_world().sum(sums_52))
        for name, value in values.items():
            self._metrics["train"][f"miner/{name}"].append(value)

    def _compare_gradients(self, measurement: _Measurement) -> dict[str, float]:
        """Both parts of the gradient, and of what the optimizer made of it."""
        world, device = current_world(), self.accelerator.device
        parts = measurement.ph, measurement.other
        has_part_2P = torch.tensor([[g is not None for g in part] for part in parts], device=device).int()
        has_part_P2 = (world.sum(has_part_2P) > 0).T.tolist()
        gradients = torch.zeros(3, dtype=accumulation_dtype(device), device=device)
        updates, is_adam = gradients.clone(), True
        for i, (parameter, group) in enumerate(measurement.parameters):
            if not any(has_part_P2[i]):
                continue
            pair = []
            for part, is_there in zip(parts, has_part_P2[i], strict=True):
                own, part[i] = part[i], None
                gradient = torch.zeros_like(parameter) if own is None else own
                pair.append(world.sum(gradient) / world.size if is_there else gradient)  # the processes' mean, as DDP
            gradients += overlap(*pair)
            denominator = adam_denominator(self.optimizer.state.get(parameter, {}), group)
            if denominator is None:
                is_adam = False
            else:
                updates += overlap(*(gradient / denominator for gradient in pair))
        values = {_OF_GRADIENT[name]: value for name, value in compare_parts(gradients).items()}
        if is_adam:
            found = compare_parts(updates)
            values |= {_OF_UPDATE[name]: found[name] for name in _OF_UPDATE if name in found}
        return values


class _AfterOptimizerStep(TrainerCallback):
    """Called between the optimizer's step and the end of its gradients."""

    def __init__(self, trainer: MeasuringTrainer) -> None:
        self.trainer = trainer

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.log_update()
