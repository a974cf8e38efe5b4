"""`MinerGRPOTrainer`: what it changes in TRL's `GRPOTrainer`, in the order in which a batch meets
it.

1. The advantages: TRL generates and scores; `methods.compose.estimate` says what its tokens get.
2. The optimizer step: `compact_step` cuts it into micro-batches, and TRL's loss runs on them.
3. The forward, without needless padding.
4. Checkpoints, which hold the batch under way.

# N = P*G completions of the global batch, those of one prompt adjacent; B of this process
# T padded completion tokens, F reward functions
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.logging import get_logger
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOTrainer

from ..methods.compose import Composition, estimate
from ..methods.groups import group_kinds
from ..methods.processes import current_world
from ..methods.rollouts import Estimate, Rollouts
from . import trl_names as trl_names  # checked first
from .compact_step import (
    Batch,
    CompactStep,
    Cutting,
    can_pack,
    loss_mask,
    row_lengths,
    why_micro_batches_stay,
    why_padding_stays,
)
from .config import MinerGRPOConfig
from .correctness import check_rewards, checked, find_verifier
from .dynamic_sampling import PromptStream, fill_batch
from .finite_gradients import FiniteGradients
from .generation_settings import neutralize
from .old_logps import score
from .policy_loss import Watched, surrogate
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
    "vespo/phi_seq_mean": "kept_rows",
}


@dataclass(frozen=True)
class ScoredBatch:
    """A generation batch of the training with its advantages, before the first step on it."""

    step: int  # the first optimizer step that trains on it, from 1
    output: Batch  # as TRL returns it: ids, masks and advantages of this process
    rollouts: Rollouts
    estimate: Estimate


class MinerGRPOTrainer(GRPOTrainer):
    """TRL's `GRPOTrainer`, which also learns from prompts whose completions are all right.

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
    cutting: Cutting | None = None  # of rows into forwards; None: TRL's own
    compact_step: CompactStep | None = None  # None: TRL's micro-batches
    micro_batches: Iterator[Batch] = iter(())  # planned
    planned_until: int = 0  # the micro-step that has no plan yet
    steps_left: int = 0  # micro-steps of the optimizer step, after the plan
    resumed_at: int = 0  # the micro-step at which the training has gone on

    # of TRL, whose types say less
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
        self.step_means: dict[str, float] = {}  # of TRL's metrics, over the micro-batches so far
        self._plan_steps()

    def _plan_steps(self) -> None:
        """Decide whether forwards go without needless padding, and whether steps are compact."""
        args, config = self.args, self.model.config.get_text_config()
        kept = why_padding_stays(config)
        if args.policy_loss == "kl_cov":  # else rounding would have a gradient of its own
            kept = "the penalty of policy_loss=kl_cov has a kink where log-probs are the old ones"
        if args.compute_less and not kept:
            # many small micro-batches are cheap on a CPU, and few large ones on a GPU
            saves = 0 if self.accelerator.device.type == "cpu" else 256
            self.cutting = Cutting(args.max_tokens_per_micro_batch, can_pack(config), saves)
            kept = why_micro_batches_stay(args, self.aux_loss_enabled)
            self.compact_step = None if kept else CompactStep(self, self.cutting)
        if args.compute_less and kept:
            logger.warning(f"compute_less: micro-batches stay TRL's, because {kept}.")

    # 1. The advantages

    def _generate_and_score_completions(self, inputs: list[Any]) -> Batch:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        if self.prompt_stream is None:
            (output, rewards_NF), metrics = self.generate_and_reward(inputs), dict[str, float]()
        else:
            output, rewards_NF, metrics = fill_batch(self, inputs)
        rollouts = self._rollouts(output, rewards_NF)
        result = estimate(self.composition, rollouts)
        # (B,) where no method speaks per token, as TRL's metrics of sequences know them
        of_rows = rollouts.local(result.advantages_N).to(output["advantages"].dtype)
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
        inputs: Batch = super()._prepare_inputs(generation_batch)
        if self.compact_step is None or not self.model.training or "num_images" in inputs:
            return inputs
        if self._step >= self.planned_until:
            # an epoch's last step is short, and a step may span several generation batches
            size = self.current_gradient_accumulation_steps
            wanted, place = self.steps_left or size, self._step % len(self._buffered_inputs)
            batches = self._buffered_inputs[place : place + wanted]  # stays for the next iteration
            self.steps_left = wanted - len(batches)
            self.planned_until = self._step + len(batches)
            self.micro_batches = self.compact_step.micro_batches(batches, len(batches) / size)
        return next(self.micro_batches)

    def _compute_loss(self, model: Any, inputs: Batch) -> Tensor:
        weight = inputs.get("row_weight", 1.0)
        if weight == 0:  # all rows are in the micro-batches behind it
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        if self.args.policy_loss != "clip" and self.model.training:
            return self._policy_loss(model, inputs)
        loss: Tensor = super()._compute_loss(model, inputs) * weight
        if "shares" in inputs:
            self._average_over_step(inputs["shares"])
        return loss

    def _policy_loss(self, model: Any, inputs: Batch) -> Tensor:
        """Return TRL's loss with the advantages and bounds that `policy_loss` finds for this
        micro-batch, once its forward is done: on copies of the trainer and of the inputs."""
        view, seen = copy(self), dict(inputs)

        def look(scores: Any) -> None:
            bounds, seed = (self.epsilon_low, self.epsilon_high), (self.args.seed, self._step)
            found = surrogate(self.args.policy_loss_method, scores[0], inputs, bounds, seed)
            seen["advantages"] = found.advantages_BT
            if found.epsilon_low is not None and found.epsilon_high is not None:
                view.epsilon_low, view.epsilon_high = found.epsilon_low, found.epsilon_high
            for name, value in found.metrics.items():
                self._metrics["train"][name].append(value)

        loss: Tensor = super(MinerGRPOTrainer, view)._compute_loss(Watched(model, look), seen)
        return loss

    def _average_over_step(self, shares: dict[str, float]) -> None:
        """Make one mean over the optimizer step of TRL's means over micro-batches, which hold
        unlike numbers of tokens; and log what is computed of TRL's step."""
        metrics = self._metrics["train"]
        values = {name: share for name, share in shares.items() if "/" in name}
        for name in OVER_STEP.keys() & metrics.keys():
            values[name] = metrics[name].pop() * shares[OVER_STEP[name]]
        for name, value in values.items():
            self.step_means[name] = self.step_means.get(name, 0.0) + value
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
        forward, cutting = super()._get_per_token_logps_and_entropies, self.cutting
        if isinstance(model, Watched):
            scores = self._get_per_token_logps_and_entropies(
                model.model, *given, batch_size, compute_entropy, **more
            )
            model.look(scores)
            return scores
        is_plain = all(value is None or value is False for value in more.values())  # no images
        if cutting is None or not is_plain or not self.model.training:
            return forward(model, *given, batch_size, compute_entropy, **more)
        if cutting.is_packed:
            forward = self._packed_forward
        if batch_size is None:  # a micro-batch
            return forward(model, *given, None, compute_entropy)
        # many rows without a gradient: like lengths together, and the same parts on every process
        P = input_ids.shape[1] - logits_to_keep
        lengths_B2 = row_lengths(attention_mask[:, :P], attention_mask[:, P:])
        order = lengths_B2.sum(1).argsort(descending=True, stable=True)
        longest = self.accelerator.gather(lengths_B2[order]).view(-1, *lengths_B2.shape).amax(0)
        found = torch.zeros(1 + compute_entropy, len(order), logits_to_keep, device=order.device)
        for start, end in cutting.cut(longest, batch_size * int(longest.amax(0).sum())):
            rows, (prompt, completion) = order[start:end], longest[start:end].amax(0).tolist()
            kept = min(completion, logits_to_keep)
            columns = slice(max(0, P - prompt), P + kept)
            part = input_ids[rows, columns], attention_mask[rows, columns], kept
            scores = forward(model, *part, None, compute_entropy)
            found[:, rows, :kept] = torch.stack(scores[: len(found)]).float()
        return *found, *[None] * (3 - len(found))

    def _packed_forward(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: None,
        compute_entropy: bool,
    ) -> Any:
        """Return what TRL's forward does, of the real tokens in one row, without a mask: positions
        that begin anew part the sequences."""
        mask, labels = attention_mask.bool(), input_ids.clone()
        labels[:, :-logits_to_keep] = -100
        ids, places, labels = (
            column[mask][None] for column in (input_ids, attention_mask.cumsum(1) - 1, labels)
        )
        with self.accelerator.autocast():
            out = model(input_ids=ids, position_ids=places, labels=labels, fused_lm_head=True)
        found = torch.cat([out.log_probs, out.entropy][: 1 + compute_entropy])
        scores = found.new_zeros(len(found), *mask.shape)
        scores[:, mask] = torch.nn.functional.pad(found, (1, 0))  # nothing predicts the first token
        return *scores[..., -logits_to_keep:], *[None] * (3 - len(scores))

    # 4. Checkpoints

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, as transformers does; of a checkpoint, the batch under way, too."""
        super().save_model(output_dir, _internal_call)
        if _internal_call and output_dir and not self.args.save_only_model:
            save_cycle(self, Path(output_dir))

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train, as transformers does. From a checkpoint of this trainer the run goes on as if it
        had never stopped, also between two steps on one generation batch."""
        folder: Any = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        self.planned_until = self.steps_left = 0
        self.resumed_at = self._step if folder and load_cycle(self, Path(folder)) else 0
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> Any:
        """Return TRL's, at the pass over the data in which a resumed training goes on."""
        loader = super().get_train_dataloader()
        if self.resumed_at and not isinstance(self.train_dataset, IterableDataset):
            skip_passes(loader, self.resumed_at // len(loader))
        return loader


def batch_metrics(rollouts: Rollouts, result: Estimate) -> dict[str, float]:
    """Return what is logged of a generation batch: the kinds of prompts, which completions have an
    advantage, the share of correct ones, and the methods' own metrics."""
    kinds, base_N, advantages_N = rollouts.kinds, rollouts.advantages_N, result.advantages_N
    by_grpo_N = (base_N != 0) & ~(kinds.is_ph_N | kinds.is_nh_N)
    used_N = (advantages_N != 0) & (by_grpo_N | (advantages_N != base_N))
    columns = [*kinds, by_grpo_N, used_N & ~by_grpo_N, used_N]
    names = [f"groups/{kind}" for kind in ("ph", "he", "nh", "unscorable")]
    names += [f"rollouts/{kind}" for kind in ("grpo", "recovered", "used")]
    shares = torch.stack(columns).float().mean(dim=1).tolist()
    correct = rollouts.is_correct_N.nanmean().item()
    return {**dict(zip(names, shares, strict=True)), "correctness/mean": correct, **result.metrics}
