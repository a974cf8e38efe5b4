"""`MinerGRPOTrainer`: what it changes in TRL's `GRPOTrainer`, in the order in which a batch meets
it.

1. The advantages: TRL generates and scores; `methods.compose.estimate` says what its tokens get.
2. The optimizer step: `compact_step` cuts it into micro-batches, and TRL's loss runs on them.
3. The forward, without needless padding.
4. Checkpoints, which hold the batch under way.

# N = P*G completions of the global batch, those of one prompt adjacent; B of this process
# T padded completion tokens, F reward functions
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from torch import Tensor
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOTrainer

from ..methods.compose import Composition, estimate
from ..methods.groups import group_kinds
from ..methods.processes import current_world
from ..methods.rollouts import Estimate, Rollouts
from . import trl_names as trl_names  # checked first
from .compact_step import (
    Batch,
    Cutting,
    can_pack,
    loss_mask,
    micro_batches,
    why_micro_batches_stay,
    why_padding_stays,
)
from .config import MinerGRPOConfig
from .correctness import check_rewards, checked, find_verifier
from .dynamic_sampling import PromptStream, fill_batch
from .finite_gradients import FiniteGradients
from .forward import forward_by_length, packed_forward
from .generation_settings import neutralize
from .old_logps import score
from .policy_loss import Watched, policy_loss
from .resume import load_cycle, save_cycle, skip_passes

logger = get_logger(__name__)

# Means of TRL's over a micro-batch, and the share by which they make one over the optimizer step.
OVER_STEP = {
    "clip_ratio/low_mean": "clipped",
    "clip_ratio/high_mean": "clipped",
    "clip_ratio/region_mean": "clipped",
    "cispo_clip_ratio": "clipped",
    "entropy": "kept",
    "kl": "kept",
}


@dataclass(frozen=True)
class ScoredBatch:
    """A generation batch of the training with its advantages, before the first step on it."""

    step: int  # the first optimizer step that trains on it, from 1
    output: Batch  # as TRL returns it: ids, masks and advantages of this process
    rollouts: Rollouts
    estimate: Estimate


class MinerGRPOTrainer(GRPOTrainer):
    """TRL's `GRPOTrainer`, which also learns from prompts whose completions are all correct.

    It takes what `GRPOTrainer` takes; with a plain `GRPOConfig` the settings of `MinerGRPOConfig`
    have their defaults.

    Attributes:
        composition: The advantage estimators of the run.
        observers: Called with each `ScoredBatch`, on every process. Append your own; it must leave
            the batch as it is.

    Raises:
        ValueError: Settings contradict each other, the model or the reward functions.
    """

    args: MinerGRPOConfig
    composition: Composition
    observers: list[Callable[[ScoredBatch], None]]
    prompt_stream: PromptStream | None = None  # of dynamic sampling
    trims = False  # whether forwards go without needless padding
    is_compact = False  # whether micro-batches are ours
    cutting = Cutting()  # of rows into both
    micro_batches: Iterator[Batch] = iter(())  # planned
    planned_until = 0  # the micro-step that has no plan yet
    steps_left = 0  # micro-steps of the optimizer step, after the plan
    resumed_at = 0  # the micro-step at which the training has gone on

    # of TRL, whose types say less
    accelerator: Accelerator
    model: Any
    num_generations: int
    _buffered_inputs: Any
    _logs: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.args = MinerGRPOConfig.of(self.args)
        model, config = self.accelerator.unwrap_model(self.model), self.args
        if self.use_vllm and getattr(model, "is_quantized", False):
            raise ValueError(
                "use_vllm does not get the weights of a model in 4 or 8 bits right"
                " (https://github.com/huggingface/trl/issues/4973). Leave out use_vllm, or the"
                " quantization."
            )
        self.composition, self.observers = config.composition, []
        names, functions = self.reward_func_names, self.reward_funcs
        chosen, weights = config.correct_reward_func, config.reward_weights
        self.verifier = find_verifier(names, chosen, weights, config.correct_threshold)
        self.reward_funcs = [checked(*pair) for pair in zip(names, functions, strict=True)]
        if config.dynamic_sampling:
            self.prompt_stream = PromptStream(self.train_dataset, config.seed)
        if not self.use_vllm:
            neutralize(self.generation_config, getattr(model, "generation_config", None))
        self.add_callback(FiniteGradients(self.accelerator))
        self.step_means = defaultdict[str, float](
            float
        )  # of TRL's metrics, over the micro-batches so far
        self._plan_steps()

    def _plan_steps(self) -> None:
        """Decide whether forwards go without needless padding, and whether micro-batches are
        ours."""
        args, config = self.args, self.model.config.get_text_config()
        if not args.compute_less:
            return
        kept = why_padding_stays(config)
        if args.policy_loss == "kl_cov":  # else rounding would have a gradient of its own
            kept = "the penalty of policy_loss=kl_cov has a kink where log-probs are the old ones"
        self.trims = not kept
        # many small micro-batches are cheap on a CPU, and few large ones on a GPU
        saves = 0 if self.accelerator.device.type == "cpu" else 256
        self.cutting = Cutting(args.max_tokens_per_micro_batch, can_pack(config), saves)
        kept = kept or why_micro_batches_stay(args, self.aux_loss_enabled)
        self.is_compact = not kept
        if kept:
            logger.warning(f"compute_less: micro-batches stay TRL's, because {kept}.")

    # 1. The advantages

    def _generate_and_score_completions(self, inputs: list[Any]) -> Batch:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        if self.prompt_stream is not None:
            output, rewards_NF, metrics = fill_batch(self, self.prompt_stream, inputs)
        else:
            (output, rewards_NF), metrics = self.generate_and_reward(inputs), {}
        rollouts = self._rollouts(output, rewards_NF)
        result = estimate(self.composition, rollouts)
        # (B,) where no method speaks per token, as TRL's metrics of sequences know them
        of_rows = rollouts.local(result.advantages_N)
        output["advantages"] = result.advantages_BT if result.is_token_level else of_rows
        for name, value in (metrics | batch_metrics(rollouts, result)).items():
            self._metrics["train"][name].append(value)
        batch = ScoredBatch(self.state.global_step + 1, output, rollouts, result)
        for observe in self.observers:
            observe(batch)
        return output

    def generate_and_reward(self, inputs: list[Any]) -> tuple[Batch, Tensor]:
        """Return TRL's scored batch of this process, and the (N, F) rewards of all."""
        output = super()._generate_and_score_completions(inputs)
        # TRL keeps the gathered rewards for its table of completions
        N, names = len(inputs) * self.accelerator.num_processes, self.reward_func_names
        columns = [[*self._logs["rewards"][name]][-N:] for name in names]
        rewards_NF = torch.tensor(columns, device=self.accelerator.device).T
        check_rewards(names, rewards_NF)
        return output, rewards_NF

    def _rollouts(self, output: Batch, rewards_NF: Tensor) -> Rollouts:
        rewards_N = (rewards_NF * self.reward_weights.to(rewards_NF.device)).nansum(dim=1)
        rewards_N[rewards_NF.isnan().all(dim=1)] = torch.nan
        world = current_world()
        advantages_N = world.gather(output["advantages"])
        kinds = group_kinds(
            rewards_N,
            self.num_generations,
            correct_threshold=self.verifier.threshold,
            verifier_rewards_N=self.verifier.rewards(rewards_NF),
            advantages_N=advantages_N,
        )
        return Rollouts(
            rewards_N,
            advantages_N,
            self.verifier.is_correct(rewards_NF),
            loss_mask(output),
            kinds,
            self.num_generations,
            partial(score, self, output),
            world,
        )

    # 2. The optimizer step

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        inputs = super()._prepare_inputs(generation_batch)
        if not self.is_compact or not self.model.training or "num_images" in inputs:
            return inputs
        if self._step >= self.planned_until:
            # an epoch's last step is short, and a step may span several generation batches
            size = self.current_gradient_accumulation_steps
            wanted, place = self.steps_left or size, self._step % len(self._buffered_inputs)
            batches = self._buffered_inputs[place : place + wanted]  # stays for the next iteration
            self.steps_left = wanted - len(batches)
            self.planned_until = self._step + len(batches)
            self.micro_batches = micro_batches(self, batches, len(batches) / size)
        return next(self.micro_batches)

    def _compute_loss(self, model: Any, inputs: Batch) -> Tensor:
        weight = inputs.get("row_weight", 1.0)
        if weight == 0:  # all rows are in the micro-batches behind it
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        if self.args.policy_loss != "clip" and self.model.training:
            return policy_loss(self, model, inputs)
        loss = super()._compute_loss(model, inputs) * weight
        if "shares" in inputs:
            self._average_over_step(inputs["shares"])
        return loss

    def _average_over_step(self, shares: dict[str, float]) -> None:
        """Make one mean over the optimizer step of TRL's means over micro-batches, which hold
        unlike numbers of tokens; and log what is computed of TRL's step."""
        metrics = self._metrics["train"]
        values = {name: share for name, share in shares.items() if "/" in name}
        for name in OVER_STEP.keys() & metrics.keys():
            values[name] = metrics[name].pop() * shares[OVER_STEP[name]]
        for name, value in values.items():
            self.step_means[name] += value
            if self.accelerator.sync_gradients:
                metrics[name].append(self.step_means.pop(name))

    # 3. The forward

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **more: Any,
    ) -> Any:
        given = input_ids, attention_mask, logits_to_keep
        forward, entropy = super()._get_per_token_logps_and_entropies, compute_entropy
        if isinstance(model, Watched):
            scores = self._get_per_token_logps_and_entropies(
                model.model, *given, batch_size, entropy, **more
            )
            model.look(scores)
            return scores
        is_text = all(value is None or value is False for value in more.values())
        if not self.trims or not is_text or not self.model.training:
            return forward(model, *given, batch_size, entropy, **more)

        def one(ids: Tensor, mask: Tensor, kept: int, entropy: bool) -> Any:
            if self.cutting.is_packed:
                return packed_forward(self.accelerator, model, ids, mask, kept, entropy)
            return forward(model, ids, mask, kept, None, entropy)

        if batch_size is None:  # a micro-batch
            return one(*given, entropy)
        return forward_by_length(self, one, *given, batch_size, entropy)

    # 4. Checkpoints

    def save_model(self, output_dir: Any = None, _internal_call: bool = False) -> None:
        """Save the model, as transformers does; of a checkpoint, the batch under way, too."""
        super().save_model(output_dir, _internal_call)
        if _internal_call and output_dir and not self.args.save_only_model:
            save_cycle(self, Path(output_dir))

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train, as transformers does. From a checkpoint of this trainer the run goes on as if it
        had never stopped, also between two steps on one generation batch."""
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        self.planned_until = self.steps_left = 0
        self.resumed_at = self._step if folder and load_cycle(self, Path(folder)) else 0
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> Any:
        """Return TRL's, at the pass over the data in which a resumed training goes on."""
        loader = super().get_train_dataloader()
        if self.resumed_at and hasattr(self.train_dataset, "__len__"):
            skip_passes(loader, self.resumed_at // len(loader))
        return loader


def batch_metrics(rollouts: Rollouts, result: Estimate) -> dict[str, float]:
    """Return what is logged of a generation batch: the kinds of prompts, which completions have an
    advantage, the share of correct ones, and the methods' own metrics."""
    kinds, base_N, advantages_N = rollouts.kinds, rollouts.advantages_N, result.advantages_N
    by_grpo_N = (base_N != 0) & ~(kinds.is_ph_N | kinds.is_nh_N)
    used_N = (advantages_N != 0) & (by_grpo_N | (advantages_N != base_N))
    shares = {
        "groups/ph": kinds.is_ph_N,
        "groups/he": kinds.is_he_N,
        "groups/nh": kinds.is_nh_N,
        "groups/unscorable": kinds.is_unscorable_N,
        "completions/grpo": by_grpo_N,
        "completions/recovered": used_N & ~by_grpo_N,
        "completions/used": used_N,
        "correctness/mean": rollouts.is_correct_N,
    }
    means = {name: values_N.float().nanmean().item() for name, values_N in shares.items()}
    return {**means, **result.metrics}
