"""`TrainerBase`: what the synchronous and the asynchronous trainer have in common.

# N rollouts of the global batch
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..methods import GRPO, MINER, Estimate
from ..methods.groups import GroupKinds, gate_on_correctness, group_kinds
from .config import MinerGRPOConfig, SharedSettings
from .correctness import CorrectnessWatch
from .finite_gradients import FiniteGradients
from .generation_settings import left_out_settings
from .observers import Observer, ScoredBatch
from .reward_functions import check_reward_columns, checked, find_verifier
from .state import ResumableState, Totals
from .swaps import on_plain_cpu

logger = logging.getLogger(__name__)


def default_output_dir(model: Any, name: str) -> str:
    """Return the folder of a training without settings, as TRL names it."""
    of = model if isinstance(model, str) else getattr(model.config, "_name_or_path", None)
    return f"{str(of or 'model').rstrip('/').split('/')[-1]}-{name}"


def check_trainable(model: Any, peft_config: Any) -> None:
    """Refuse a model none of whose weights would be trained.

    With a KL penalty TRL adds a copy of a frozen adapter and gives gradients to that: loss and
    norm look alive, and the adapter stays as it is.
    """
    if peft_config is not None or not isinstance(model, torch.nn.Module):
        return
    if not any(parameter.requires_grad for parameter in model.parameters()):
        how = (
            "Load the adapter to train it: PeftModel.from_pretrained(..., is_trainable=True)"
            if hasattr(model, "peft_config")
            else "Set requires_grad of what is to be trained, or pass a peft_config"
        )
        raise ValueError(
            f"A model must have weights that are trained: no parameter of this"
            f" {type(model).__name__} requires a gradient. {how}."
        )


class TrainerBase(FiniteGradients):
    """Which rollout is correct, what is told and logged of a batch, and what a checkpoint keeps.

    A base class beside TRL's trainer, which comes after it.

    Attributes:
        verifier: The reward functions that decide what is correct.
        observers: Whoever is told of each generation batch.
        resumable: The state of the trainer's parts.
        evaluation: The scores of held-out problems so far, if an `EvaluationCallback` finds some:
            {"before": {"pass@1": ...}, ...}.
        held_out_metrics: Those of them that every such moment has, which can choose the best model.
    """

    # TRL's card names the method and cites it; the first is in the default output_dir, too.
    _name = "MINER"
    _tag_names = ["trl", "miner"]  # noqa: RUF012
    _paper: dict[str, str] = {  # noqa: RUF012
        "title": "Miner: Mining Intrinsic Mastery for Data-Efficient RL in Large Reasoning Models",
        "id": "2601.04731",
    }
    # The class of its settings, and the one of TRL's from which these are made.
    _config: Any
    _trl_config: Any
    # What whoever works with a trainer reads of it. TRL's synchronous one has them of its own.
    reward_funcs: list[Any]
    reward_func_names: list[str]
    reward_weights: Tensor  # (F,), of the F reward functions
    num_generations: int
    max_completion_length: Any  # tokens
    tools: Any  # functions, or None
    environment_factories: Any  # by the name that a row gives, or None
    rollout_func: Any
    # TRL's types say less.
    args: MinerGRPOConfig
    model: Any
    _metrics: dict[str, Any]

    @classmethod
    def _settings(cls, model: Any, args: Any) -> Any:
        """Return the settings as ours; TRL's own train MINER with its defaults."""
        ours = cls._config
        if args is None:
            return ours(default_output_dir(model, cls._name))
        if isinstance(args, ours):
            return args
        if not isinstance(args, cls._trl_config):
            raise ValueError(
                f"args must be a {ours.__name__} or TRL's {cls._trl_config.__name__}: got"
                f" {type(args).__name__}. Use {ours.__name__} with the same settings."
            )
        settings = ours.of(args)
        if not isinstance(args, SharedSettings) and args.process_index == 0:
            logger.warning(
                f"args is a {type(args).__name__}, so that MINER trains with its defaults:"
                f" miner_gamma={settings.miner_gamma:g},"
                f" miner_lambda_max={settings.miner_lambda_max:g}. {ours.__name__} sets them, or"
                " another method."
            )
        return settings

    def _add_base(self) -> None:
        """Choose the verifier, and add the state."""
        self.observers: list[Observer] = []
        self.evaluation: dict[str, dict[str, float]] = {}
        self.held_out_metrics: set[str] = set()
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
        method = self.args.estimators[-1]
        self._name = method.label
        if method is not MINER:
            self._paper = {"title": method.label, "id": method.arxiv} if method.arxiv else {}
        self.totals = Totals()
        self.resumable = ResumableState(self)
        self.resumable.add("totals", self.totals)
        self.add_callback(self.resumable)

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
        self._watch = CorrectnessWatch(
            self.args, self.verifier, self.num_generations, self.reward_func_names
        )
        if not self.is_world_process_zero():
            return
        if self.verifier.is_guess:
            logger.warning(self.verifier.reason)
        left_out = left_out_settings(self.model)
        if left_out := {
            name: left_out[name] for name in left_out.keys() - (self.args.generation_kwargs or {})
        }:
            logger.warning(
                f"The model's generation_config.json sets"
                f" {json.dumps(left_out, sort_keys=True)[1:-1]}:"
                " rollouts and held-out samples are drawn without it, from the distribution whose"
                " log-probs the loss takes. To have it in rollouts alone, set generation_kwargs."
            )

    # A training

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        self.resumable.begin(resume_from_checkpoint)
        with on_plain_cpu(self.args):
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
        write = super()._save_checkpoint

        def write_all() -> None:
            write(model, trial)
            self.resumable.save(folder)

        self.write_checkpoint(folder, write_all)

    def write_checkpoint(self, folder: Path, write: Callable[[], None]) -> None:
        """Have `write` write the checkpoint. A run that marks its checkpoints overrides this. Every
        process must call it."""
        write()

    def load_best_model(self) -> None:
        """Load the best checkpoint, as transformers does at the end of a training."""
        self._load_best_model()

    def rollouts_under_way(self) -> tuple[list[dict[str, Any]], int] | None:
        """Return the rollouts of the generation cycle in progress, and how many micro-steps TRL has
        made; None: none is in progress."""
        return None

    def take_rollouts(self, batches: list[dict[str, Any]], micro_step: int) -> None:
        """Go on with what `rollouts_under_way` returned."""
        raise NotImplementedError

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Name a part of a step: "training step", "generation", "rewards" or "checkpoint". A run
        that watches its steps overrides this."""
        return nullcontext()

    @property
    def moment(self) -> str:
        """The name of a scoring of held-out problems at this step of the training."""
        step = self.state.global_step
        return "after" if step >= self.state.max_steps else f"step {step}"

    @property
    def generates_in_turns(self) -> bool:
        """Whether tools, environments or a `rollout_func` take part in rollouts: one call of
        `generate` draws none."""
        return bool(self.tools or self.environment_factories or self.rollout_func)

    # A generation batch

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
        metrics, totals = self._metrics["train"], self.totals
        shares, used_N = result.shares(kinds, advantages_N)
        for name, share in shares.items():
            metrics[name].append(share)
        totals.used += int(used_N.sum())
        # Running totals: not appended, because TRL logs the mean of what it finds.
        metrics["rollouts/generated_total"] = [float(totals.generated)]
        metrics["rollouts/used_total"] = [float(totals.used)]
        metrics["rollouts/tokens_total"] = [float(totals.tokens)]
        for name, value in result.metrics.items():
            metrics[name].append(value)
        if self.args.estimators[-1] is not GRPO:
            metrics[f"{self.args.estimators[-1].metric_prefix}/seconds"].append(seconds)

    def tell(self, batch: ScoredBatch) -> None:
        """Tell all observers of a generation batch. Every process must call it."""
        for observer in self.observers:
            observer.observe(batch)

    # TRL's metrics, modes and random state.

    def log_train_metric(self, name: str, value: float) -> None:
        """Have TRL log the mean of such values with its next log of the training."""
        self._metrics["train"][name].append(value)

    @contextmanager
    def catching_metrics(self) -> Iterator[dict[str, dict[str, list[float]]]]:
        """Yield a dict that gets what is logged inside the block, by mode; TRL does not log it."""
        metrics, self._metrics = self._metrics, {mode: defaultdict(list) for mode in self._metrics}
        try:
            yield self._metrics
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


# Of any trainer of TRL


def train_metrics(trainer: Any) -> dict[str, list[float]]:
    """Return the metrics of the training, of which a trainer logs the mean."""
    metrics: dict[str, list[float]] = trainer._metrics["train"]
    return metrics


def logged_rollouts(trainer: Any) -> Any:
    """Return the columns of rollouts that a trainer logs, by name; None: it keeps none."""
    return getattr(trainer, "_logs", None)
