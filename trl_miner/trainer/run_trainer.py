"""`RunTrainer`: what both trainers do around their steps: records, checkpoints, the card,
pushes."""

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from datasets import Dataset
from torch import Tensor

from ..data.prompt_form import form_of_rows, write_form
from ..data.prompts import PromptForm
from ..evaluation.seeded_sampling import left_out_settings
from ..heartbeat import beat, phase
from ..hub.model_card import make_card
from ..hub.training import open_repo, push_trained
from ..methods import GRPO, Estimate
from ..methods.groups import GroupKinds, gate_on_correctness, group_kinds
from ..progress import is_quiet
from ..reward_functions import check_reward_columns, checked, find_verifier
from ..runs.locks import hold_run
from ..runs.models import CARD
from ..runs.training_record import add_to_record
from .best_model import num_checkpoints
from .correctness import CorrectnessWatch
from .finite_gradients import FiniteGradients
from .run import Checkpointing, NothingLeft, RunState

logger = logging.getLogger(__name__)


def own_config(kind: type, model: Any, args: Any, name: str) -> Any:
    """Return the settings of a trainer: the defaults, or those that are given, if they are of the
    right kind."""
    if args is None:
        of = model if isinstance(model, str) else getattr(model.config, "_name_or_path", None)
        return kind(f"{str(of or 'model').rstrip('/').split('/')[-1]}-{name}")
    if not isinstance(args, kind):
        raise ValueError(
            f"args must be a {kind.__name__}: got {type(args).__name__}, which does not say which"
            f" method to train. Use {kind.__name__} with the same settings."
        )
    return args


class RunTrainer(FiniteGradients):
    """The run of a trainer: its folder and state, which rollout is correct, how its model is saved.

    A base class beside TRL's trainer, which comes after it.
    """

    _name = "MINER"  # in the default output_dir
    reward_funcs: list[Any]

    def _add_run(self) -> None:
        """Choose the verifier, and add what a run keeps: its state, its checkpoints, its
        records."""
        self._metrics: dict[str, Any]
        # {"before": {"pass@1": ...}, ...}, shown on the model card
        self.evaluation: dict[str, dict[str, float]] = {}
        # those of them that every such moment has, which can choose the best model
        self.held_out_metrics: set[str] = set()
        # what `training.json` says beside what the trainer knows
        self.about: Mapping[str, Any] = {}
        self._choose_verifier()
        columns = getattr(self.train_dataset, "column_names", None)
        # a stream's are unknown; a rollout adds its own
        if columns is not None and self.rollout_func is None:
            # an environment may bring its own
            needs_prompt = not getattr(self, "environment_factories", None)
            check_reward_columns(
                self.reward_func_names, self.reward_funcs, columns, needs_prompt=needs_prompt
            )
        self.reward_funcs = [*map(checked, self.reward_func_names, self.reward_funcs)]
        # goes into the folder of every model; None: not known yet
        self.prompt_form: PromptForm | None = None
        if isinstance(self.train_dataset, Dataset):  # a stream's is seen in its first batch
            self.take_form(form_of_rows(self.train_dataset, self.args.chat_template_kwargs))
        self.add_callback(RunState())
        self._checkpoints = Checkpointing(self)

    def _choose_verifier(self) -> None:
        self.verifier = find_verifier(
            self.reward_func_names, self.args.correct_reward_func, self.reward_weights.tolist()
        )
        if self.args.gate_on_correctness and self.verifier.is_guess:
            raise ValueError(
                "gate_on_correctness needs to know which reward function decides what is correct:"
                f" got {', '.join(self.reward_func_names)}, of which none is a known verifier. Set"
                " correct_reward_func to the one that verifies, or to several joined by '+'."
            )
        self._watch = CorrectnessWatch(self.args, self.verifier, self.num_generations)
        if not self.is_world_process_zero():
            return
        own = left_out_settings(self.model)
        if own := {name: own[name] for name in own.keys() - (self.args.generation_kwargs or {})}:
            logger.warning(
                f"The model's generation_config.json sets {json.dumps(own, sort_keys=True)[1:-1]}:"
                " rollouts and held-out samples are drawn without it, from the distribution whose"
                " log-probs the loss takes. To have it in rollouts alone, set generation_kwargs."
            )
        if self.verifier.is_guess:
            logger.warning(self.verifier.reason)
        elif (
            len(self.reward_funcs) > 1 and self.args.correct_reward_func is None and not is_quiet()
        ):
            print(self.verifier.reason)

    # A training: from a checkpoint, step by step.

    def find_checkpoint(self, wanted: str | bool | None) -> str | None:
        """Return the checkpoint from which the next training resumes, with the errors that it would
        raise before its first step. Every process must call it.
        """
        return self._checkpoints.prepare(wanted)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train as transformers does; `resume_from_checkpoint` may also be "latest": the newest
        whole checkpoint, or none. A checkpoint that has done all steps is loaded, and no more are
        made.

        Raises:
            ValueError: Another training holds the run folder or has used it, there is no whole
                checkpoint to resume from, or it has other settings.
        """
        # before 5.18 transformers loads onto accelerate's cpu:0, which torch.load does not know
        device = torch.device("cpu") if self.args.device.type == "cpu" else self.args.device
        with (
            hold_run(self.args.output_dir),
            patch.object(type(self.args), "device", device),
            patch.object(self.args, "save_total_limit", num_checkpoints(self.args)),
        ):
            checkpoint = self._checkpoints.resume(resume_from_checkpoint)
            try:
                return super().train(checkpoint, *args, **kwargs)
            except NothingLeft:
                return self._checkpoints.end_at_once()

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as transformers does; the metrics have the held-out scores of this step, too,
        so that `metric_for_best_model` may name one."""
        metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        scores = self.evaluation.get(self.moment, {})
        return metrics | {f"eval_{name}": value for name, value in scores.items()}

    @property
    def moment(self) -> str:
        """The name of a scoring of held-out problems at this step of the training."""
        step = self.state.global_step
        return "after" if step >= self.state.max_steps else f"step {step}"

    @contextmanager
    def generating(self, name: str) -> Iterator[None]:
        """Name a phase of the run in which the model generates; each of its forwards is a sign of
        life."""
        embeddings = self.accelerator.unwrap_model(self.model).get_input_embeddings()
        hook = embeddings.register_forward_pre_hook(lambda *_: beat())
        try:
            with phase(name, self.state.global_step):
                yield
        finally:
            hook.remove()

    @property
    def generates_in_turns(self) -> bool:
        """Whether tools, environments or a `rollout_func` take part in rollouts: one call of
        `generate` draws none."""
        return bool(self.tools or self.environment_factories or self.rollout_func)

    # What the run says of its prompts and generation batches.

    def take_form(self, form: PromptForm | None) -> None:
        """Keep the form of the prompts, which goes into the folder of every model; None: it is not
        known."""
        # tools and environments add words of their own
        if form is not None and self.generates_in_turns:
            form = replace(form, is_known=False)
        self.prompt_form = form

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as transformers does, and beside it the form of its prompts. Every process
        must call it."""
        # `training_args.bin` holds them
        with patch.object(self, "args", self.args.without_secrets()):
            super().save_model(output_dir, _internal_call=True)
        if self.args.should_save:
            write_form(Path(output_dir or self.args.output_dir), self.prompt_form)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save")

    def _sort_groups(
        self, rewards_N: Tensor, advantages_N: Tensor, verifier_rewards_N: Tensor
    ) -> tuple[GroupKinds, Tensor, Tensor]:
        """Return the kinds of the groups, and rewards and advantages, which `gate_on_correctness`
        may change."""
        by: dict[str, Any] = {"verifier_rewards_N": verifier_rewards_N}
        by["correct_threshold"] = self.args.correct_threshold
        if self.args.gate_on_correctness:
            gated = gate_on_correctness(rewards_N, advantages_N, self.num_generations, **by)
            rewards_N, advantages_N, is_gated_N = gated
            self.log_train_metric("groups/gated", is_gated_N.float().mean().item())
        kinds = group_kinds(rewards_N, self.num_generations, advantages_N=advantages_N, **by)
        self._watch.end_batch(verifier_rewards_N, kinds)
        return kinds, rewards_N, advantages_N

    def _log_estimate(
        self, kinds: GroupKinds, advantages_N: Tensor, result: Estimate, seconds: float
    ) -> None:
        """Log which rollouts GRPO uses and which the estimators do."""
        metrics, state = self._metrics["train"], RunState.of(self)
        shares, used_N = result.shares(kinds, advantages_N)
        for name, share in shares.items():
            metrics[name].append(share)
        state.used += int(used_N.sum())
        # Running totals: not appended, because TRL logs the mean of what it finds.
        metrics["rollouts/generated_total"] = [float(state.generated)]
        metrics["rollouts/used_total"] = [float(state.used)]
        metrics["rollouts/tokens_total"] = [float(state.tokens)]
        for name, value in result.metrics.items():
            metrics[name].append(value)
        if self.args.estimators[-1] is not GRPO:
            metrics[f"{self.args.estimators[-1].metric_prefix}/seconds"].append(seconds)

    def create_model_card(
        self,
        model_name: str | None = None,
        dataset_name: str | None = None,
        tags: str | list[str] | None = None,
    ) -> None:
        """Write our own card in the place of TRL's."""
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir)
        record = add_to_record(
            folder, dataset_name, [tags] if isinstance(tags, str) else tags or ()
        )
        name = (
            (self.args.hub_model_id if self.args.push_to_hub else None)
            or model_name
            or folder.resolve().name
        )
        text = make_card(folder, record, name=name, evaluation=self.evaluation)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CARD).write_text(text, encoding="utf-8")

    # TRL's metrics, modes and random state.

    def log_train_metric(self, name: str, value: float) -> None:
        """Have TRL log the mean of such values with its next log of the training."""
        self._metrics["train"][name].append(value)

    @contextmanager
    def dropping_metrics(self) -> Iterator[None]:
        """Drop what is logged inside the block."""
        metrics, self._metrics = self._metrics, {mode: defaultdict(list) for mode in self._metrics}
        try:
            yield
        finally:
            self._metrics = metrics

    @contextmanager
    def evaluating(self, *, as_training: bool = False) -> Iterator[None]:
        """Put the model into evaluation mode inside the block; with `as_training` its parts alone,
        so that its forwards still count as those of a training."""
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        self.model.training = as_training
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode

    def undoing_draws(self) -> AbstractContextManager[None]:
        """Restore the random state after the block."""
        return torch.random.fork_rng(
            devices=[self.accelerator.device] if self.accelerator.device.type == "cuda" else []
        )

    def casting_once(self) -> AbstractContextManager[Any]:
        """Have mixed precision keep its 16-bit copies of float32 weights from one forward to the
        next.

        Generation otherwise spends much of its time on making them. With sharded weights this does
        nothing, as the copies would raise the peak of memory.
        """
        is_sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        return nullcontext() if is_sharded else self.accelerator.autocast()

    # Checkpoints and pushes.

    @property
    def resumed_from(self) -> Path | None:
        """The checkpoint of a training that is about to go on."""
        return self._checkpoints.resumed_from

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial))
        self._checkpoints.save(folder, partial(super()._save_checkpoint, model, trial))

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        open_repo(self, partial(super().init_hf_repo, *args, **kwargs))

    def push_to_hub(self, *args: Any, **kwargs: Any) -> bool:
        """Push the model and return whether it arrived: see
        `trl_miner.hub.training.push_trained`."""
        return push_trained(self, *args, **kwargs)
