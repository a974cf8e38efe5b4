"""One optimizer step: which rows share a micro-batch, which are left out, and what acts inside TRL's loss.

# B rows of a micro-batch or of a piece of the step, T padded completion tokens
"""

import logging
import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import trl
from accelerate.utils import DistributedType
from packaging.version import Version
from torch import Tensor

from ..distributed import current_world
from ..methods import POLICY_LOSSES, Surrogate
from .forwards import ForwardingTrainer, is_multimodal
from .micro_batches import ROW_MEAN, SUMMED, TOKEN_MEAN, Cut, Piece, Window, loss_mask, plan

logger = logging.getLogger(__name__)

_MASKS_LUSPO = Version(trl.__version__) >= Version("1.10")


class SteppingTrainer(ForwardingTrainer):
    """TRL's trainer, whose optimizer step has the same gradient for fewer tokens, or another surrogate."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._metrics: dict[str, Any]
        self.accelerator: Any
        self.epsilon_low: float
        self.epsilon_high: float
        self._loss_inputs: dict[str, Any] | None = None
        self._bounds: Surrogate | None = None  # BAPO's, for the optimizer batch under way
        self._window: Window | None = None  # the optimizer step under way, where its rows are cut otherwise than TRL's
        self._window_first = self._window_end = 0  # the micro-steps that the window lasts
        self._micro_step = 0  # of the optimizer step
        self._piece: Piece | None = None  # whose loss is computed
        self._replayed: tuple[Any, ...] | None = None  # what the next forward of a loss is to say instead of the model
        self._said: set[str] = set()
        self._moves_rows = self._may_move_rows()

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._micro_step = self._window_first = self._window_end = 0
        return super().train(*args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        self._micro_step = 0 if self.accelerator.sync_gradients else self._micro_step + 1
        return loss

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        if not self.model.training:
            return inputs
        if not self._window_first <= self._step < self._window_end:
            self._begin_window()
        if self._window is None and self.args.length_aware_training and not is_multimodal(inputs):
            inputs = self._cut.trim(inputs)
        return inputs

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if self._replayed is not None:
            found = self._replayed
        else:
            found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._piece is not None and self._window is not None:
            self._window.keep(self._piece, found[0].detach(), found[1].detach())
        if self._loss_inputs is not None:
            self._rewrite_loss_inputs(found[0])
        return found

    def _may_move_rows(self) -> bool:
        """Whether the gradient is a sum over rows whatever micro-batch they are in."""
        args, reason = self.args, None
        if getattr(self, "use_liger_kernel", False):
            reason = "Liger's loss takes TRL's micro-batches"
        elif args.policy_loss == "kl_cov":
            # |lp - old lp|: 0 where both are computed alike, else what rounding makes of it, with a gradient of +-1.
            reason = "the penalty of policy_loss=kl_cov has a kink where log-probs are the old ones"
            self._cut = Cut(False, False)
        elif self.loss_type == "luspo" and not _MASKS_LUSPO:
            reason = "this version of TRL averages loss_type=luspo over padding too; 1.10 does not"
            self._cut = Cut(False, False)
        elif self.loss_type not in SUMMED | ROW_MEAN | TOKEN_MEAN:
            reason = f"loss_type={self.loss_type} is not known here"
        elif self.loss_type in TOKEN_MEAN and self.beta != 0.0:
            reason = f"with beta={self.beta}, loss_type={self.loss_type} is a mean over the tokens of a micro-batch"
        elif self.top_entropy_quantile < 1.0:
            reason = "top_entropy_quantile picks among the tokens of a micro-batch"
        elif self._entropy_bonus_enabled:
            reason = "the entropy bonus is a mean over the tokens of a micro-batch"
        elif self.aux_loss_enabled:
            reason = "the router's loss is a mean over the tokens of a micro-batch"
        elif args.policy_loss == "clip_cov":
            reason = "policy_loss=clip_cov picks among the tokens of a micro-batch"
        is_wanted = {
            "length_aware_training": args.length_aware_training,
            "skip_zero_advantages": args.skip_zero_advantages,
            "max_tokens_per_micro_batch": args.max_tokens_per_micro_batch is not None,
        }
        wanted = [name for name in is_wanted if is_wanted[name]]
        if reason and wanted:
            is_trimmed = args.length_aware_training and self._cut.completions
            less = ", less the padding that none of its rows needs" if is_trimmed else ""
            logger.warning(f"{', '.join(wanted)}: micro-batches stay TRL's{less}, because {reason}.")
        return reason is None and bool(wanted)

    def _begin_window(self) -> None:
        """Decide, at the first micro-step of a window, how to go through the rows of all of them.

        A window is what one optimizer step takes from one generation batch. Every process calls, and all decide alike.
        """
        args, first = self.args, self._step % self.args.steps_per_generation
        size = min(self.current_gradient_accumulation_steps - self._micro_step, args.steps_per_generation - first)
        size = max(size, 1)
        self._window_first, self._window_end, self._window = self._step, self._step + size, None
        if not self._moves_rows:
            return
        batches = self._buffered_inputs[first : first + size]
        is_text = torch.tensor([not any(map(is_multimodal, batches))], device=self.accelerator.device)
        if not current_world().gather(is_text).all():
            names = "length_aware_training, skip_zero_advantages, max_tokens_per_micro_batch"
            self._say_once(f"{names}: with images, micro-batches stay TRL's.")
            return
        window = plan(
            batches,
            cut=self._cut if args.length_aware_training else Cut(False, False),
            by_length=args.length_aware_training,
            skips_rows=args.skip_zero_advantages,
            has_kl=self.beta != 0.0,
            max_tokens=args.max_tokens_per_micro_batch,
            loss_type=self.loss_type,
            min_pieces=size if self._is_deepspeed else 1,  # it counts backwards that reach no weight, and gets lost
            world=current_world(),
        )
        if window.is_worth_it:
            self._window = window
        else:
            self._log_shares(1.0, window.trimmed_share)

    @property
    def _is_deepspeed(self) -> bool:
        return self.accelerator.distributed_type == DistributedType.DEEPSPEED

    def _log_shares(self, rows: float, tokens: float) -> None:
        """Of the rows and padded tokens that TRL puts through forward and backward, those that really go."""
        self._metrics["train"]["micro_batches/rows"].append(rows)
        self._metrics["train"]["micro_batches/tokens"].append(tokens)

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            logger.warning(message)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        window = self._window if self.model.training else None
        if self.args.policy_loss == "bapo" and self.model.training:
            self._find_bounds()
        if window is None:
            return self._compute_policy_loss(model, inputs)
        pieces = window.of_step(self._step - self._window_first)
        others = torch.zeros((), device=self.accelerator.device)
        for number in pieces[:-1]:
            with self._without_exchange(model):
                loss = self._compute_piece_loss(model, window, number)
                # as in Trainer.training_step
                self.accelerator.backward(loss, **({"scale_wrt_gas": False} if self._is_deepspeed else {}))
            others += loss.detach()
        if pieces:
            loss = self._compute_piece_loss(model, window, pieces[-1])
        else:
            loss = torch.zeros((), device=self.accelerator.device, requires_grad=True)
        if self._step + 1 == self._window_end:
            self._log_window(window)
        return loss + others

    def _compute_piece_loss(self, model: Any, window: Window, number: int) -> Tensor:
        """TRL's loss of other rows than TRL's; what it logs meanwhile goes nowhere: see `_log_window`."""
        self._watchdog.beat()
        piece = self._piece = window.piece(number)
        metrics, self._metrics = self._metrics, {mode: defaultdict(list) for mode in self._metrics}
        accelerator, self.accelerator = self.accelerator, _Alone(self.accelerator)
        try:
            return self._compute_policy_loss(model, piece.inputs) * piece.weight
        finally:
            self._piece, self._metrics, self.accelerator = None, metrics, accelerator

    @contextmanager
    def _without_exchange(self, model: Any) -> Iterator[None]:
        """A backward after which others follow before the processes exchange gradients."""
        if not self.accelerator.sync_gradients:  # Trainer sees to it
            yield
            return
        state = self.accelerator.gradient_state
        state._set_sync_gradients(False)
        try:
            with nullcontext() if self._is_deepspeed else self.accelerator.no_sync(model):
                yield
        finally:
            state._set_sync_gradients(True)

    @torch.no_grad()
    def _log_window(self, window: Window) -> None:
        """TRL's metrics of TRL's micro-batches: its loss once more, on the log-probs that the pieces gave."""
        for batch, logps_BT, entropies_BT in window.replay():
            self._replayed = (logps_BT, entropies_BT, None)
            try:
                self._compute_policy_loss(self.model, batch)
            finally:
                self._replayed = None
        size = len(window.batches)
        shares = torch.tensor([window.num_tokens, window.padded_tokens(), *window.row_counts()])
        totals = current_world().sum(
            torch.cat([window.token_counts().flatten().cpu(), shares]).to(self.accelerator.device)
        )
        tokens, padded, used, rows = totals[-4:].tolist()
        metrics = self._metrics["train"]
        # TRL divided by the tokens of all rows, and rows left out have no entropies. (It logs no mean with a NaN.)
        for i, (counted, seen) in enumerate(totals[:-4].view(size, 2).tolist()):
            if seen != counted:
                metrics["entropy"][i - size] *= counted / seen if seen else math.nan
        self._log_shares(used / rows, tokens / padded)

    # Inside the loss: `policy_loss`.

    def _compute_policy_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.args.policy_loss == "clip" or not self.model.training:
            return super()._compute_loss(model, inputs)
        # TRL looks for advantages, old log-probs and bounds after its forward, which `_rewrite_loss_inputs` follows.
        self._loss_inputs = dict(inputs)
        bounds = self.epsilon_low, self.epsilon_high
        try:
            return super()._compute_loss(model, self._loss_inputs)
        finally:
            self._loss_inputs = None
            self.epsilon_low, self.epsilon_high = bounds

    def _rewrite_loss_inputs(self, logps_BT: Tensor) -> None:
        """Between TRL's forward and TRL's loss: the advantages and bounds that `policy_loss` wants it to see."""
        inputs = self._loss_inputs
        assert inputs is not None
        found = self._bounds if self._bounds is not None else self._surrogate(logps_BT, inputs)
        if self._bounds is None:
            inputs["advantages"] = found.advantages_BT
            self._log_surrogate(found)
        if found.clip_low is not None and found.clip_high is not None:
            self.epsilon_low, self.epsilon_high = 1 - found.clip_low, found.clip_high - 1

    def _surrogate(self, logps_BT: Tensor, inputs: dict[str, Any]) -> Surrogate:
        mask_BT = loss_mask(inputs)
        advantages = inputs["advantages"]
        old_logps_BT = inputs.get("old_per_token_logps")
        method = POLICY_LOSSES[self.args.policy_loss].function
        assert method is not None
        surrogate: Surrogate = method(
            logps_BT,
            logps_BT.detach() if old_logps_BT is None else old_logps_BT,
            advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand(mask_BT.shape),
            mask_BT,
            world=current_world(),
            **self._loss_context(),
            **self.args.knobs(self.args.policy_loss),
        )
        return surrogate

    def _loss_context(self) -> dict[str, Any]:
        if self.args.policy_loss != "clip_cov":
            return {}
        # From the place in the run, so that a resumed one draws the same tokens; the same on every process.
        micro_step = self._step % self.current_gradient_accumulation_steps
        generator = torch.Generator()
        generator.manual_seed(((self.args.seed * 2**32 + self.state.global_step) * 2**10 + micro_step) % 2**63)
        return {"generator": generator, "epsilon_low": self.epsilon_low, "epsilon_high": self.epsilon_high}

    def _find_bounds(self) -> None:
        """BAPO's bounds for all rows of this optimizer step, at its first micro-step: one forward over each of them.
        Where the step is one forward, that one will do."""
        accumulation = self.current_gradient_accumulation_steps
        if accumulation == 1 and (self._window is None or len(self._window.pieces) == 1):
            self._bounds = None
            return
        if self._step % accumulation:
            return
        first = self._step % self.args.steps_per_generation
        batches = self._buffered_inputs[first : first + self.current_gradient_accumulation_steps]
        names = ("completion_mask", "tool_mask", "advantages", "old_per_token_logps")
        inputs = {name: torch.cat([batch[name] for batch in batches]) for name in names if name in batches[0]}
        self._bounds = self._surrogate(
            torch.cat([self._forward(batch, len(batch["advantages"])) for batch in batches]), inputs
        )
        self._log_surrogate(self._bounds)

    def _log_surrogate(self, found: Surrogate) -> None:
        for name, value in found.metrics.items():
            self._metrics["train"][name].append(value)


class _Alone:
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
