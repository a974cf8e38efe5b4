"""`RunTrainer`: TRL's trainer, opened where a run's collaborators act: steps, forwards, loss, checkpoints, pushes."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from ..hub.training import open_repo, push_checkpoint, push_trained
from ..launching.health import free_port, is_port_free
from ..precision import warn_of_slow_bf16
from ..runs.checkpoints import UNFINISHED
from ..runs.locks import hold_run
from .checkpointing import Checkpointing, NothingLeft, RunState
from .gradient_share import GradientShare
from .hooks import FORWARD
from .patching import patched
from .policy_loss import PolicyLoss
from .prompts import PromptRows
from .reference import average_kl, fill_reference
from .row_layout import AS_TRL, choose_layout
from .scoring import Forwards
from .step import OptimizerStep
from .watchdog import TRAINING_STEP, TrainingWatchdog


class RunTrainer(GRPOTrainer):
    """TRL's trainer, whose run survives what happens to it, and whose optimizer steps compute less.

    Each optional feature is a collaborator with a state of its own, which this class calls from the methods of TRL
    that it overrides. The class attributes below hold for a trainer that was built without `__init__`, as TRL's own
    tests do: it has no collaborators and behaves as TRL's.
    """

    args: Any  # a MinerGRPOConfig
    reward_funcs: list[Any]
    forwards: Forwards | None = None
    _optimizer_step: OptimizerStep | None = None
    _policy_loss: PolicyLoss | None = None
    _gradient_share: GradientShare | None = None
    _checkpoints: Checkpointing | None = None
    _watchdog = TrainingWatchdog()
    # What `training.json` says beside what the trainer knows: see `write_run_record`. `trl_miner.train` sets it.
    about: Mapping[str, Any] = {}
    has_stepped = False  # whether `training_step` has been called

    def __init__(self, model: Any, reward_funcs: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        _set_group_port(args)
        super().__init__(model, reward_funcs, args, *rest, **kwargs)
        if self.accelerator.is_main_process:
            autocast = "bf16: false" if self.accelerator.mixed_precision == "bf16" else None
            warn_of_slow_bf16(self.model, self.accelerator.device, weights="dtype: float32", autocast=autocast)
        self._metrics: dict[str, Any]
        self.epsilon_low: float
        self.epsilon_high: float
        self.add_callback(RunState())
        self._watchdog = TrainingWatchdog(self)
        self._checkpoints = Checkpointing(self)
        self.forwards = Forwards(self)
        self._optimizer_step = OptimizerStep(self)
        if self.args.policy_loss_method.function is not None:
            self._policy_loss = PolicyLoss(self)
        if self.args.log_gradient_share or self.args.dose_share is not None:
            self._gradient_share = GradientShare(self)
            self.add_callback(self._gradient_share)

    # A training: from a checkpoint, step by step.

    def _get_dataloader(
        self, dataset: Any, description: str, *args: Any, is_training: bool = False, **kwargs: Any
    ) -> Any:
        # A worker process would have to send the whole data set with each batch.
        if is_training and isinstance(dataset, Dataset) and not self.args.dataloader_num_workers:
            dataset = PromptRows(self._remove_unused_columns(dataset, description))
        return super()._get_dataloader(dataset, description, *args, is_training=is_training, **kwargs)

    def find_checkpoint(self, wanted: str | bool | None) -> str | None:
        """Return the checkpoint that `train(wanted)` would resume from, which it also takes. Every process must call.

        Raises:
            ValueError: There is no whole checkpoint, it has other settings, or output_dir is another run's.
        """
        return None if self._checkpoints is None else self._checkpoints.prepare(wanted)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as transformers does; `resume_from_checkpoint` may also be "latest": the newest whole checkpoint, or
        none. A checkpoint that has done all steps is loaded, and no more are made.

        Raises:
            ValueError: Another training holds the run folder or has used it, there is no whole checkpoint to resume
                from, or it has other settings.
            RunStopped: Nothing has moved for `watchdog_seconds`. (With several processes they end at once, with exit
                code 75, since a collective cannot be left by an exception.)
        """
        if self._checkpoints is None or self._optimizer_step is None:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        with hold_run(self.args.output_dir):
            checkpoint = self._checkpoints.resume(resume_from_checkpoint)
            self._optimizer_step.reset()
            try:
                with self._watchdog.ending():
                    return super().train(checkpoint, *args, **kwargs)
            except NothingLeft:
                return self._checkpoints.end_at_once()

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        with self._watchdog.phase(TRAINING_STEP):
            loss = super().training_step(*args, **kwargs)
        self.has_stepped = True
        if self._optimizer_step is not None:
            self._optimizer_step.end_micro_step()
        return loss

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Return one of TRL's micro-batches, generating first where the last generation batch is used up."""
        step, forwards = self._optimizer_step, self.forwards
        if step is None or forwards is None or self._checkpoints is None or not self.model.training:
            return super()._prepare_inputs(generation_batch)
        if forwards.layout is AS_TRL:
            forwards.layout = choose_layout(self)
        self._checkpoints.restore_rollouts()
        return step.arrange(super()._prepare_inputs(generation_batch))

    def watch_for_losses(self) -> None:
        """Have the training end where its vLLM server or one of its processes is gone, unless `watchdog_seconds` says
        otherwise: `trl-miner train` calls it. No reward function, however slow, ends the training then."""
        self._watchdog.watch_for_losses()

    def watching(self, phase: str) -> AbstractContextManager[None]:
        """Name a phase of the run to the watchdog; each forward of the model in it is a sign of life."""
        return self._watchdog.watching(phase)

    # The loss of a micro-batch.

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        step = self._optimizer_step
        if step is None or not self.model.training:
            return super()._compute_loss(model, inputs)
        if self._policy_loss is not None:
            self._policy_loss.prepare(step.plan)
        if step.plan is not None:
            return step.compute_loss(model, step.plan)
        return self.micro_batch_loss(model, inputs)

    def micro_batch_loss(self, model: Any, inputs: dict[str, Any], weight: float = 1.0) -> Tensor:
        """Return the loss of a micro-batch, which counts with this weight. Every process must call it."""
        if self._gradient_share is not None:
            self._gradient_share.add(inputs, weight)
        loss = self.call_loss(model, inputs) * weight
        average_kl(self, inputs)
        return loss

    def call_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Return TRL's loss of some rows, with what `policy_loss` and `kl_on` put into it after its forward."""
        inputs = dict(inputs)
        ask: Callable[..., tuple[Any, ...]] = getattr(self, FORWARD)

        def forward(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
            """Return what TRL's loss gets, overrides included; it looks for all else in `inputs` after this."""
            result = ask(*args, **kwargs)
            fill_reference(inputs, result[0])
            if self._policy_loss is not None:
                self._policy_loss.rewrite(inputs, result[0])
            return result

        bounds = self.epsilon_low, self.epsilon_high
        try:
            with patched(self, FORWARD, forward):
                loss: Tensor = super()._compute_loss(model, inputs)
            return loss
        finally:
            self.epsilon_low, self.epsilon_high = bounds

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        run = self.trl_forward if self.forwards is None else self.forwards.run
        return run(model, *args, **kwargs)

    def trl_forward(self, model: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return what TRL's own forward returns: log-probs (B, T), entropies or None, and an auxiliary loss."""
        result: tuple[Any, ...] = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        return result

    # TRL's metrics.

    def log_train_metric(self, name: str, value: float) -> None:
        """Have TRL log the mean of such values with its next log of the training."""
        self._metrics["train"][name].append(value)

    @contextmanager
    def dropping_metrics(self) -> Iterator[None]:
        """Drop what is logged meanwhile."""
        metrics, self._metrics = self._metrics, {mode: defaultdict(list) for mode in self._metrics}
        try:
            yield
        finally:
            self._metrics = metrics

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put the model into evaluation mode meanwhile, so that it drops nothing out."""
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode

    def undoing_draws(self) -> AbstractContextManager[None]:
        """Undo the random draws made meanwhile."""
        return torch.random.fork_rng(
            devices=[self.accelerator.device] if self.accelerator.device.type == "cuda" else []
        )

    def casting_once(self) -> AbstractContextManager[Any]:
        """Have mixed precision keep its 16-bit copies of float32 weights from one forward to the next.

        For generation, whose forwards of one token otherwise spend much of their time on making them. The copies exist
        in any forward, so the peak of memory stays; not so with sharded weights, where this does nothing.
        """
        is_sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        return nullcontext() if is_sharded else self.accelerator.autocast()

    # Checkpoints and pushes.

    def _get_output_dir(self, trial: Any) -> str:
        folder: str = super()._get_output_dir(trial)
        is_saving = self._checkpoints is not None and self._checkpoints.is_saving
        return str(Path(folder, UNFINISHED)) if is_saving else folder

    def _save(self, *args: Any, **kwargs: Any) -> None:
        # pickles the settings into `training_args.bin` of every checkpoint and run folder
        own, self.args = self.args, self.args.without_secrets()
        try:
            super()._save(*args, **kwargs)
        finally:
            self.args = own

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        write = partial(super()._save_checkpoint, model, trial)
        if self._checkpoints is None:
            return write()
        folder = Path(self._get_output_dir(trial))
        with self._watchdog.phase("checkpoint", growing=folder / UNFINISHED):
            checkpoint = self._checkpoints.save(folder, write)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._checkpoints is None or not self._checkpoints.is_saving:  # once the checkpoint is in its place
            push_checkpoint(self, checkpoint_folder)

    @property
    def resumed_from(self) -> Path | None:
        """The checkpoint of a training that is about to go on."""
        return None if self._checkpoints is None else self._checkpoints.resumed_from

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        open_repo(self, partial(super().init_hf_repo, token, private))

    def push_to_hub(self, *args: Any, **kwargs: Any) -> bool:
        """Push the model and return whether it arrived: see `trl_miner.hub.training.push_trained`."""
        return push_trained(self, *args, **kwargs)


def _set_group_port(args: Any) -> None:
    """Choose a free `vllm_group_port` in the place of TRL's default, which any outgoing connection may have taken.

    With one that is taken, TRL's trainer and its server would wait forever.
    """
    if not args.use_vllm or args.vllm_mode != "server":
        return
    if args.vllm_group_port == GRPOConfig.vllm_group_port:
        args.vllm_group_port = free_port()
    elif os.environ.get("RANK", "0") == "0" and not is_port_free(args.vllm_group_port):
        raise ValueError(
            f"vllm_group_port must be free on the machine that trains: got {args.vllm_group_port}, which is in use. "
            f"Leave it out, and a free one is chosen."
        )
