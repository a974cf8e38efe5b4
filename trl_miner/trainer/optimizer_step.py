"""The optimizer step under way: the gradient of TRL's, up to rounding, with fewer tokens through the model."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor

from ..config_checks import ALL_ROWS
from ..distributed import current_world
from ..heartbeat import beat
from .hooks import MICRO_BATCH_HOOKS, overridden
from .micro_batches import MicroBatchPlan, plan_micro_batches
from .padding import NO_TRIM
from .reference import average_kl
from .scoring import is_multimodal

logger = logging.getLogger(__name__)


class OptimizerStep:
    """How the rows of the optimizer step under way go through the model.

    A plan spans the micro-steps of an optimizer step that take their rows from one generation batch.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._has_warned = False
        self.reset()

    def reset(self) -> None:
        """Start with a new optimizer step."""
        self.micro_step = 0  # micro-steps that are done
        self.plan: MicroBatchPlan | None = None  # of those under way; None: TRL's own micro-batches
        self._first = self._end = 0  # the micro-steps that the plan spans, as TRL counts them
        self._is_overridden = False  # a hook of the user's gets TRL's micro-batches as they are

    def end_micro_step(self) -> None:
        """Count a micro-step that is done."""
        self.micro_step = 0 if self._trainer.accelerator.sync_gradients else self.micro_step + 1

    def arrange(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return TRL's micro-batch, trimmed where no plan trims it; make the plan at its first micro-step.

        Every process must call it.
        """
        if not self._first <= self._trainer._step < self._end:
            self._make_plan()
        is_trimmed = self.plan is None and self._trainer.args.length_aware_training and not self._is_overridden
        if is_trimmed and not is_multimodal(inputs):
            inputs = self._trainer.forwards.layout.trim.trim(inputs)
        return inputs

    def _make_plan(self) -> None:
        trainer, args = self._trainer, self._trainer.args
        start = trainer._step % args.steps_per_generation
        size = min(trainer.current_gradient_accumulation_steps - self.micro_step, args.steps_per_generation - start)
        size = max(size, 1)
        self._first, self._end, self.plan = trainer._step, trainer._step + size, None
        hooks = overridden(trainer, MICRO_BATCH_HOOKS)
        self._is_overridden = bool(hooks)
        if hooks:
            return self._warn(f"{type(trainer).__name__} overrides {', '.join(hooks)}")
        if not self._trainer.forwards.layout.can_regroup:
            return
        batches = trainer._buffered_inputs[start : start + size]
        if not trainer.forwards.can_sort(batches):
            return self._warn("these have images")
        plan = plan_micro_batches(
            batches,
            trim=self._trainer.forwards.layout.trim if args.length_aware_training else NO_TRIM,
            by_length=args.length_aware_training,
            skips_rows=args.skip_zero_advantages,
            has_kl=trainer.beta != 0.0 and args.kl_on == ALL_ROWS,
            max_tokens=args.max_tokens_per_micro_batch,
            loss_type=trainer.loss_type,
            least=size if self._is_deepspeed else 1,  # it counts backwards that reach no weight, and gets lost
            world=current_world(),
        )
        if plan.is_worth_it:
            self.plan = plan
        else:
            self._log_shares(1.0, plan.trimmed_share)

    def _warn(self, reason: str) -> None:
        """Say once what the run asks for and cannot have."""
        args = self._trainer.args
        wanted = [name for name in ("length_aware_training", "skip_zero_advantages") if getattr(args, name)]
        wanted += ["max_tokens_per_micro_batch"] * (args.max_tokens_per_micro_batch is not None)
        if wanted and not self._has_warned and self._trainer.is_world_process_zero():
            logger.warning(f"{', '.join(wanted)}: micro-batches stay TRL's, because {reason}.")
        self._has_warned = True

    def compute_loss(self, model: Any, plan: MicroBatchPlan) -> Tensor:
        """Return the loss of this micro-step's share of the plan; all but its last micro-batch are already backward.

        Every process must call it.
        """
        trainer = self._trainer
        numbers = plan.of_micro_step(trainer._step - self._first)
        others = torch.zeros((), device=trainer.accelerator.device)
        for number in numbers[:-1]:
            with self._without_gradient_exchange(model):
                loss = self._micro_batch_loss(model, plan, number)
                # as in Trainer.training_step
                trainer.accelerator.backward(loss, **({"scale_wrt_gas": False} if self._is_deepspeed else {}))
            others += loss.detach()
        if numbers:
            loss = self._micro_batch_loss(model, plan, numbers[-1])
        else:
            loss = torch.zeros((), device=trainer.accelerator.device, requires_grad=True)
        if trainer._step + 1 == self._end:
            self._log_plan(plan)
        return loss + others

    def _micro_batch_loss(self, model: Any, plan: MicroBatchPlan, number: int) -> Tensor:
        """Return TRL's loss of one micro-batch of the plan; what TRL logs meanwhile is dropped: see `_log_plan`."""
        beat()
        trainer, micro_batch = self._trainer, plan.build(number)
        accelerator, trainer.accelerator = trainer.accelerator, _LocalAccelerator(trainer.accelerator)
        try:
            with trainer.dropping_metrics():
                trainer.measure_gradient(micro_batch.inputs, micro_batch.weight)
                loss: Tensor = trainer.call_loss(
                    model, micro_batch.inputs, keep=lambda *said: plan.keep(micro_batch, *said)
                )
                return loss * micro_batch.weight
        finally:
            trainer.accelerator = accelerator

    @contextmanager
    def _without_gradient_exchange(self, model: Any) -> Iterator[None]:
        """Run a backward after which others follow before the processes exchange gradients."""
        accelerator = self._trainer.accelerator
        if not accelerator.sync_gradients:  # Trainer sees to it
            yield
            return
        state = accelerator.gradient_state
        state._set_sync_gradients(False)
        try:
            with nullcontext() if self._is_deepspeed else accelerator.no_sync(model):
                yield
        finally:
            state._set_sync_gradients(True)

    @torch.no_grad()
    def _log_plan(self, plan: MicroBatchPlan) -> None:
        """Log TRL's metrics of TRL's micro-batches: its loss once more, on the log-probs that the plan has kept."""
        trainer = self._trainer
        for batch, logps_BT, entropies_BT in plan.replay():
            trainer.call_loss(trainer.model, batch, replayed=(logps_BT, entropies_BT, None))
            average_kl(trainer, batch)
        size = len(plan.trl_batches)
        shares = torch.tensor([plan.num_tokens, plan.padded_tokens(), *plan.row_counts()])
        totals = current_world().sum(
            torch.cat([plan.token_counts().flatten().cpu(), shares]).to(trainer.accelerator.device)
        )
        tokens, padded, used, rows = totals[-4:].tolist()
        entropies = trainer._metrics["train"]["entropy"]
        # TRL divided by the tokens of all rows, and rows left out have no entropies. (It logs no mean with a NaN.)
        for i, (counted, kept) in enumerate(totals[:-4].view(size, 2).tolist()):
            if kept != counted:
                entropies[i - size] *= counted / kept if kept else math.nan
        self._log_shares(used / rows, tokens / padded)

    def _log_shares(self, rows: float, tokens: float) -> None:
        """Log which shares of TRL's rows and padded tokens really go through forward and backward."""
        self._trainer.log_train_metric("micro_batches/rows", rows)
        self._trainer.log_train_metric("micro_batches/tokens", tokens)

    @property
    def _is_deepspeed(self) -> bool:
        return bool(self._trainer.accelerator.distributed_type == DistributedType.DEEPSPEED)


class _LocalAccelerator:
    """An accelerator that gathers and reduces over this process alone: for numbers that nobody will read."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def gather(self, value: Any) -> Any:
        return value

    gather_for_metrics = gather

    def reduce(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return value
