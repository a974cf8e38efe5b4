"""The optimizer step under way: the gradient of TRL's, up to rounding, with fewer tokens through
the model."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor

from ..methods.distributed import accumulation_dtype, current_world
from .core import Core
from .micro_batches import MicroBatchPlan, loss_mask, padded_tokens, plan_micro_batches
from .swaps import LocalGather


class OptimizerStep:
    """How the rows of the optimizer step under way go through the model.

    A plan spans the micro-steps of an optimizer step that take their rows from one generation
    batch. It takes the trainer for its counters, buffered rows, accelerator and loss.
    """

    def __init__(self, trainer: Core) -> None:
        self._trainer = trainer
        self._gather = LocalGather(trainer.accelerator)
        self.reset()

    def reset(self) -> None:
        """Start with a new optimizer step."""
        self.micro_step = 0  # micro-steps that are done
        self._is_under_way = False  # else a loss is not of the training: it was called by hand
        # of those under way; None: TRL's own micro-batches
        self._plan: MicroBatchPlan | None = None
        self._first = self._end = 0  # the micro-steps that the plan spans, as TRL counts them

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the micro-step that the block makes."""
        self._is_under_way = True
        try:
            yield
        finally:
            self._is_under_way = False
        self.micro_step = 0 if self._trainer.accelerator.sync_gradients else self.micro_step + 1

    def find_plan(self) -> MicroBatchPlan | None:
        """Return the plan of the micro-step under way, made at its first one; None: TRL's own
        micro-batches.

        Every process must call it.
        """
        trainer = self._trainer
        if not (self._is_under_way and trainer.forwards.sorts_rows):
            return None
        if not self._first <= trainer._step < self._end:
            self._make_plan()
        return self._plan

    def _make_plan(self) -> None:
        trainer, args = self._trainer, self._trainer.args
        start = trainer._step % args.steps_per_generation
        size = min(
            trainer.current_gradient_accumulation_steps - self.micro_step,
            args.steps_per_generation - start,
        )
        size = max(size, 1)
        self._first, self._end = trainer._step, trainer._step + size
        batches = trainer._buffered_inputs[start : start + size]
        self._plan = plan_micro_batches(
            batches,
            has_kl=trainer.beta != 0.0,
            max_tokens=args.max_tokens_per_micro_batch,
            loss_type=trainer.loss_type,
            # it counts backwards that reach no weight, and gets lost
            least=size if self._is_deepspeed else 1,
            world=current_world(),
            hidden_size=getattr(trainer.model.config.get_text_config(), "hidden_size", 0),
        )
        self._means = TokenMeans()

    def compute_loss(self, model: Any, plan: MicroBatchPlan) -> Tensor:
        """Return the loss of this micro-step's share of the plan; all but its last micro-batch are
        already backward.

        Every process must call it.
        """
        trainer = self._trainer
        numbers = plan.of_micro_step(trainer._step - self._first)
        others = torch.zeros((), device=trainer.accelerator.device)
        for number in numbers[:-1]:
            with self._without_gradient_exchange(model):
                loss = self._micro_batch_loss(model, plan, number)
                # as in Trainer.training_step
                trainer.accelerator.backward(
                    loss, **({"scale_wrt_gas": False} if self._is_deepspeed else {})
                )
            others += loss.detach()
        if numbers:
            loss = self._micro_batch_loss(model, plan, numbers[-1])
        else:
            loss = torch.zeros((), device=trainer.accelerator.device, requires_grad=True)
        if trainer._step + 1 == self._end:
            self._log(plan)
        return loss + others

    def _micro_batch_loss(self, model: Any, plan: MicroBatchPlan, number: int) -> Tensor:
        """Return TRL's loss of one micro-batch of the plan, and keep what TRL logs of it."""
        trainer, (inputs, weight) = self._trainer, plan.build(number)
        with trainer.catching_metrics() as caught, self._gather.of_this_process():
            loss: Tensor = trainer.micro_batch_loss(model, inputs, weight)
        self._means.add(caught["train"], inputs)
        return loss

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

    def _log(self, plan: MicroBatchPlan) -> None:
        """Log TRL's metrics, and which shares of its rows and padded tokens went through forward
        and backward."""
        trainer = self._trainer
        metrics = self._means.over(plan.batch)
        sizes = [
            plan.is_used_n.sum(),
            len(plan.is_used_n),
            plan.num_tokens,
            padded_tokens(plan.batch),
        ]
        totals = current_world().sum(torch.tensor(sizes, device=trainer.accelerator.device))
        used, rows, tokens, padded = totals.tolist()
        metrics |= {"micro_batches/rows": used / rows, "micro_batches/tokens": tokens / padded}
        for name, value in metrics.items():
            # as TRL for each micro-step: a log averages over those since the last
            for _ in range(plan.num_steps):
                trainer.log_train_metric(name, value)

    @property
    def _is_deepspeed(self) -> bool:
        return bool(self._trainer.accelerator.distributed_type == DistributedType.DEEPSPEED)


class TokenMeans:
    """What TRL logs of each micro-batch, averaged by its tokens; `*_min` and `*_max` are the least
    and the greatest.

    A clip ratio counts the tokens of rows left out as well: without an advantage they are never
    clipped.
    """

    def __init__(self) -> None:
        # of each metric, TRL's values and over how many tokens of this process they are
        self._found: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def add(self, logged: Mapping[str, Sequence[float]], inputs: dict[str, Any]) -> None:
        """Add what TRL has logged of a micro-batch."""
        num_tokens = float(loss_mask(inputs).sum())
        for name, values in logged.items():
            self._found[name] += [(value, num_tokens) for value in values if not math.isnan(value)]

    def over(self, batch: dict[str, Any]) -> dict[str, float]:
        """Return each metric over all rows, with those left out. Every process must call it."""
        num_tokens = float(loss_mask(batch).sum())
        # F metrics of W processes: total, tokens, least, greatest
        own_F4 = []
        for name, found in self._found.items():
            values = [value for value, _ in found]
            counted = num_tokens if "clip_ratio" in name else sum(weight for _, weight in found)
            total = sum(value * weight for value, weight in found)
            own_F4.append(
                (total, counted, min(values, default=math.inf), max(values, default=-math.inf))
            )
        device = batch["advantages"].device
        own_1F4 = torch.tensor([own_F4], dtype=accumulation_dtype(device), device=device)
        summaries_WF4 = current_world().gather(own_1F4).cpu()
        totals_F, counts_F, *_ = summaries_WF4.sum(dim=0).T
        extremes = {
            "_min": summaries_WF4[..., 2].amin(dim=0),
            "_max": summaries_WF4[..., 3].amax(dim=0),
        }
        means = {}
        for i, name in enumerate(self._found):
            value = float(extremes.get(name[-4:], totals_F / counts_F)[i])
            means[name] = value if math.isfinite(value) else math.nan
        return means
