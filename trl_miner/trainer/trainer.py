"""`MinerGRPOTrainer`: what it changes in TRL's `GRPOTrainer`, in the order in which a batch meets
it.

1. The advantages: TRL generates and scores; `methods.compose.estimate` says what its tokens get.
2. The optimizer step: `compact_step` cuts it into micro-batches, and TRL's loss runs on them.
3. The forward, without needless padding.
4. Checkpoints, which hold the batch under way.

# N = P*G completions of the global batch, those of one prompt adjacent; B of this process
# T padded completion tokens, F reward functions
"""

import logging
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOTrainer

from ..methods.compose import Composition, estimate
from ..methods.groups import correctness, group_kinds
from ..methods.method import PolicyLoss
from ..methods.processes import current_world
from ..methods.rollouts import Estimate, Rollouts
from . import compact_step, resume  # the names are checked first
from . import trl_names as trl_names
from .compact_step import Batch, CompactStep, Cutting, loss_mask, row_lengths
from .config import MinerGRPOConfig
from .correctness import Verifier, check_rewards, checked, find_verifier
from .dynamic_sampling import PromptStream, fill_batch
from .finite_gradients import FiniteGradients
from .generation_settings import neutralize
from .logit_statistics import STATISTICS, check_logits
from .old_logps import OldPolicy
from .policy_loss import Watched, surrogate

logger = logging.getLogger(__name__)

CLIPPED = {
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region_mean",
    "cispo_clip_ratio",
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
    policy_loss: tuple[PolicyLoss, dict[str, Any]]  # with its knobs
    verifier: Verifier
    old_policy: OldPolicy
    prompt_stream: PromptStream | None = None  # of dynamic sampling
    # None: TRL's micro-batches
    compact_step: CompactStep | None = None
    # None: TRL's forward; else how many rows without a gradient are cut
    cutting: Cutting | None = None
    # of the optimizer step under way: its number, its first micro-step, and what is left of it
    step_begun: tuple[int, int] = (-1, 0)
    micro_batches: Iterator[Batch] = iter(())
    step_means: dict[str, float]
    checkpoint: Path | None = None  # of a training that is about to resume

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        config = kwargs.get("args", args[1] if len(args) > 1 else None)
        _refuse_quantized_vllm(model, config)
        super().__init__(model, *args, **kwargs)
        self.args = config = MinerGRPOConfig.of(self.args)
        self.composition, self.observers, self.step_means = config.composition, [], {}
        self.policy_loss = config.policy_loss_method
        if any(STATISTICS[0] in method.scores for method in self.composition.methods):
            check_logits(self.accelerator.unwrap_model(self.model))
        names, functions = self.reward_func_names, self.reward_funcs
        self.verifier = find_verifier(names, config.correct_reward_func, config.reward_weights)
        self.reward_funcs = [checked(*pair) for pair in zip(names, functions, strict=True)]
        self.old_policy = OldPolicy(self)
        if config.dynamic_sampling:
            self.prompt_stream = PromptStream(self.train_dataset, config.seed)
        if not self.use_vllm:
            own = getattr(self.accelerator.unwrap_model(self.model), "generation_config", None)
            neutralize(self.generation_config, own)
        self.add_callback(FiniteGradients(self.accelerator))
        self.add_callback(_TakeUp(self))
        self._plan_steps()

    def _plan_steps(self) -> None:
        """Decide whether steps are compact, and forwards without needless padding."""
        if not self.args.compute_less:
            return
        model_config = self.model.config.get_text_config()
        if reason := compact_step.why_padding_stays(model_config):
            if self.is_world_process_zero():
                logger.warning(f"compute_less: the step stays TRL's, because {reason}.")
            return
        # many small micro-batches are cheap on a CPU, and few large ones on a GPU
        saves = 0 if self.accelerator.device.type == "cpu" else 256
        is_packed = compact_step.can_pack(model_config)
        self.cutting = Cutting(self.args.max_tokens_per_micro_batch, is_packed, saves)
        if reason := compact_step.why_micro_batches_stay(self):
            if self.is_world_process_zero():
                logger.warning(f"compute_less: micro-batches stay TRL's, because {reason}.")
            return
        self.compact_step = CompactStep(
            self.accelerator,
            self.cutting,
            moves_all=self.beta != 0.0,
            is_row_mean=self.loss_type in compact_step.ROW_MEAN,
            # it counts backwards: it overwrites the gradient in the first of a step
            fills_all=self.accelerator.distributed_type == DistributedType.DEEPSPEED,
        )

    # 1. The advantages

    def _generate_and_score_completions(self, inputs: list[Any]) -> Batch:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        if self.prompt_stream is None:
            output, rewards_NF = self._generate_and_reward(inputs)
            metrics = {}
        else:
            output, rewards_NF, metrics = fill_batch(
                self.accelerator,
                inputs,
                self._generate_and_reward,
                lambda rewards_NF: self._correctness(rewards_NF)[0],
                self.prompt_stream,
                self.num_generations,
            )
        rollouts = self._rollouts(output, rewards_NF)
        result = estimate(self.composition, rollouts)
        # (B,) where no method speaks per token, as TRL's metrics of sequences know them
        output["advantages"] = (
            result.advantages_BT
            if result.is_token_level
            else rollouts.local(result.advantages_N).to(output["advantages"].dtype)
        )
        metrics |= batch_metrics(rollouts, result)
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        batch = ScoredBatch(self.state.global_step + 1, output, rollouts, result)
        for observe in self.observers:
            observe(batch)
        return output

    def _generate_and_reward(self, inputs: list[Any]) -> tuple[Batch, Tensor]:
        """Return TRL's scored batch of this process, and the (N, F) rewards of all."""
        output = super()._generate_and_score_completions(inputs)
        # TRL keeps the gathered rewards for its table of completions
        N = len(inputs) * self.accelerator.num_processes
        columns = [[*self._logs["rewards"][name]][-N:] for name in self.reward_func_names]
        rewards_NF = torch.tensor(columns, device=output["advantages"].device).T
        check_rewards(self.reward_func_names, rewards_NF)
        return output, rewards_NF

    def _correctness(self, rewards_NF: Tensor) -> tuple[Tensor, Tensor]:
        """Return (N,) which completions are correct, and the (N,) rewards that decide it."""
        verifier_rewards_N = self.verifier.rewards(rewards_NF)
        return correctness(verifier_rewards_N, self.args.correct_threshold), verifier_rewards_N

    def _rollouts(self, output: Batch, rewards_NF: Tensor) -> Rollouts:
        rewards_N = (rewards_NF * self.reward_weights.to(rewards_NF.device)).nansum(dim=1)
        rewards_N[rewards_NF.isnan().all(dim=1)] = torch.nan
        is_correct_N, verifier_rewards_N = self._correctness(rewards_NF)
        self.verifier.watch(verifier_rewards_N, self.args.correct_threshold)
        world = current_world()
        advantages_N = world.gather(output["advantages"])
        return Rollouts(
            rewards_N,
            advantages_N,
            is_correct_N,
            loss_mask(output),
            group_kinds(
                rewards_N,
                self.num_generations,
                correct_threshold=self.args.correct_threshold,
                verifier_rewards_N=verifier_rewards_N,
                advantages_N=advantages_N,
            ),
            self.num_generations,
            partial(self.old_policy.score, output),
            world,
        )

    # 2. The optimizer step

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        inputs: Batch = super()._prepare_inputs(generation_batch)
        if self.compact_step is None or not self.model.training or "num_images" in inputs:
            return inputs
        # an epoch's last step is short, and a step may span several generation batches
        size, place = (
            self.current_gradient_accumulation_steps,
            self._step % len(self._buffered_inputs),
        )
        number, first = self.step_begun
        if number != self.state.global_step or self._step - first >= size:
            first = self._step
            self.step_begun = self.state.global_step, first
        done = self._step - first
        if place == 0 or done == 0:  # TRL's buffer stays as it is, for the next iteration
            batches = self._buffered_inputs[place : place + size - done]
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
            self._average_over_step(inputs)
        return loss

    def _policy_loss(self, model: Any, inputs: Batch) -> Tensor:
        """Return TRL's loss with the advantages and bounds that `policy_loss` finds for this
        micro-batch, once its forward is done: on copies of the trainer and of the inputs."""
        (method, knobs), view, seen = self.policy_loss, copy(self), dict(inputs)
        seed = (self.args.seed * 2**32 + self._step) * 2**2

        def look(scores: Any) -> None:
            found = surrogate(
                method,
                knobs,
                scores,
                inputs,
                bounds=(self.epsilon_low, self.epsilon_high),
                seed=seed,
            )
            seen["advantages"] = found.advantages_BT
            if found.epsilon_low is not None and found.epsilon_high is not None:
                view.epsilon_low, view.epsilon_high = found.epsilon_low, found.epsilon_high
            for name, value in found.metrics.items():
                self._metrics["train"][name].append(value)

        loss: Tensor = super(MinerGRPOTrainer, view)._compute_loss(Watched(model, look), seen)
        return loss

    def _average_over_step(self, inputs: Batch) -> None:
        """Make one mean over the optimizer step of TRL's means over micro-batches, which hold
        unlike numbers of tokens. Rows that are left out count as not clipped."""
        metrics, shares = self._metrics["train"], inputs["shares"]
        by_row = self.importance_sampling_level == "sequence" and inputs["advantages"].dim() == 1
        weights = dict.fromkeys(CLIPPED, shares.rows if by_row else shares.tokens)
        weights |= dict.fromkeys(("entropy", "kl"), shares.kept_tokens)
        weights["vespo/phi_seq_mean"] = shares.kept_rows
        values = {
            name: metrics[name].pop() * weights[name] for name in weights.keys() & metrics.keys()
        }
        values |= {"micro_batches/rows": shares.rows, "micro_batches/tokens": shares.padded}
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
        compute_aux_loss: bool = False,
        **images: Any,
    ) -> Any:
        if isinstance(model, Watched):
            scores = self._get_per_token_logps_and_entropies(
                model.model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size,
                compute_entropy,
                compute_aux_loss,
                **images,
            )
            model.look(scores)
            return scores
        as_trl = super()._get_per_token_logps_and_entropies
        is_plain = not compute_aux_loss and all(value is None for value in images.values())
        if self.cutting is None or not is_plain or not self.model.training:
            return as_trl(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size,
                compute_entropy,
                compute_aux_loss,
                **images,
            )
        forward = self._packed_forward if self.cutting.is_packed else as_trl
        if batch_size is None:  # a micro-batch
            return forward(model, input_ids, attention_mask, logits_to_keep, None, compute_entropy)
        # many rows without a gradient: like lengths together, and the same parts on every process
        P = input_ids.shape[1] - logits_to_keep
        lengths_B2 = row_lengths(attention_mask[:, :P], attention_mask[:, P:])
        order = lengths_B2.sum(1).argsort(descending=True, stable=True)
        longest = self.accelerator.gather(lengths_B2[order]).view(-1, *lengths_B2.shape).amax(0)
        scores_BT = torch.zeros(
            1 + compute_entropy, len(order), logits_to_keep, device=order.device
        )
        for start, end in self.cutting.cut(longest, batch_size * int(longest.amax(0).sum())):
            rows, (prompt, completion) = order[start:end], longest[start:end].amax(0).tolist()
            kept = min(completion, logits_to_keep)
            columns = slice(max(0, P - prompt), P + kept)
            ids, mask = input_ids[rows, columns], attention_mask[rows, columns]
            found = forward(model, ids, mask, kept, None, compute_entropy)
            scores_BT[:, rows, :kept] = torch.stack(found[: len(scores_BT)]).float()
        return *scores_BT, *[None] * (3 - len(scores_BT))

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
        if not (_internal_call and output_dir) or self.args.save_only_model:
            return
        is_within = self._step % (self.args.steps_per_generation * self.num_iterations) != 0
        state = {
            "micro_step": self._step,
            "batches": self._buffered_inputs if is_within else None,
            "metrics": dict(self._metrics["train"]),
            "drawn": self.prompt_stream.drawn if self.prompt_stream else 0,
        }
        resume.save_cycle(Path(output_dir), self.accelerator, self._layout(), state)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train, as transformers does. From a checkpoint of this trainer the run goes on as if it
        had never stopped, also between two steps on one generation batch."""
        folder: Any = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        self.checkpoint = Path(folder) if folder else None
        return super().train(resume_from_checkpoint, **kwargs)

    def take_up(self, dataloader: Any) -> None:
        """Restore the batch under way and the place in the data, once transformers has restored
        the rest."""
        folder, self.checkpoint = self.checkpoint, None
        if folder is None:
            return
        if not isinstance(dataloader.dataset, IterableDataset):
            accumulation = self.args.gradient_accumulation_steps
            resume.skip_passes(dataloader, self.state.global_step, accumulation)
        state = resume.load_cycle(folder, self.accelerator, self._layout())
        if state is not None:
            self._step, self._buffered_inputs = state["micro_step"], state["batches"]
            self._metrics["train"].update(state["metrics"])
            if self.prompt_stream:
                self.prompt_stream.drawn = state["drawn"]

    def _layout(self) -> list[int]:
        args = self.args
        sizes = args.per_device_train_batch_size, args.gradient_accumulation_steps
        return [*sizes, args.steps_per_generation, self.num_iterations, self.num_generations]


class _TakeUp(TrainerCallback):
    """Tells a trainer that a training begins, with the data loader that transformers has made."""

    def __init__(self, trainer: MinerGRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        self.trainer.take_up(train_dataloader)


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


def _refuse_quantized_vllm(model: Any, config: Any) -> None:
    """Refuse a quantized model with vLLM: TRL merges the adapter into the quantized weights, which
    rounds them anew, and sends them without what they mean.

    Raises:
        ValueError: The model is quantized, and vLLM generates.
    """
    if not getattr(config, "use_vllm", False):
        return
    init = config.model_init_kwargs or {}
    if getattr(model, "is_quantized", False) or init.get("quantization_config") is not None:
        raise ValueError(
            "use_vllm does not get the weights of a quantized model right"
            " (https://github.com/huggingface/trl/issues/4973): got a model in 4 or 8 bits. Leave"
            " out use_vllm, or the quantization."
        )
