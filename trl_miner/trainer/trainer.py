"""`MinerGRPOTrainer`: what happens to a generation batch, from its prompts to the loss, in the
order of this file.

# N rollouts of the global generation batch, B of this process, F reward functions, T padded
completion tokens
"""

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..methods import Rollouts
from ..methods.compose import estimate
from ..methods.distributed import current_world
from .base import TrainerBase, check_trainable
from .config import MinerGRPOConfig
from .generation_batch import (
    COMPLETION_IDS,
    COMPLETIONS,
    EXTRA_FIELDS,
    GenerationBatch,
    completion_texts,
    correct_rollouts,
    num_sampled_tokens,
    steps_of_batch,
    token_rows,
    total_rewards,
)
from .generation_settings import neutral_settings
from .gradient_share import GradientShare, with_parts
from .micro_batches import loss_mask
from .observers import ScoredBatch
from .on_cpu import warn_of_slow_bf16
from .outcomes import PromptHistory, PromptOutcomes
from .policy_loss import PolicyLoss
from .prompts import PromptSource
from .reward_functions import check_rewards
from .round_sampling import sample_adaptively, sample_dynamically
from .row_layout import FORWARD, overridden, refuse_own_loss
from .rules import draws_prompts, prompts_can_be_drawn, prompts_can_be_recognised
from .sampler_check import SamplerCheck, takes_sampler_logps
from .scoring import Forwards, Scores
from .seeded_vllm import seeding
from .step import OptimizerStep
from .swaps import holding, sending_full_weights
from .trl_names import GRPOConfig, GRPOTrainer

logger = logging.getLogger(__name__)
Sampler = Callable[[Sequence[Sequence[int]]], list[list[int]]]  # completions of prompts, in tokens


class MinerGRPOTrainer(TrainerBase, GRPOTrainer):
    """TRL's `GRPOTrainer`, which also learns from all-right prompts: those whose completions are all
    correct. By default this is MINER (https://huggingface.co/papers/2601.04731).

    Generation, rewards, loss and evaluation are TRL's own. What changes are the advantages of a
    training batch: there is one for each token. `policy_loss`, `dynamic_sampling`,
    `adaptive_sampling_rounds` and `prompt_selection` change more, and are off by default.
    Evaluation always has the advantages of plain GRPO.

    The log-probs under the old policy are those that TRL has computed, or else those of the sampler
    (a `rollout_func`, or vLLM without importance-sampling correction). If there are neither, one
    forward pass computes them for the all-right prompts alone.

    The trainer writes into `output_dir` what TRL's does, over anything that is there.
    `trl_miner.training.RunTrainer` protects earlier runs, and keeps the records that
    `trl-miner report` shows.

    Args:
        model (`str` or `PreTrainedModel`):
            Model to train: an id on the Hub, a folder, or a loaded model.
        reward_funcs (`Callable` or `list[Callable]`, *optional*):
            Reward functions. Each takes `completions`, a list of B texts or conversations, and the
            data set's columns as lists of B values; it returns B rewards, with None for a
            completion that it does not score. `trl_miner.rewards` has some. If there are several,
            name the verifier with `correct_reward_func`.
        args (`MinerGRPOConfig`, *optional*):
            The settings. With TRL's `GRPOConfig`, or none, MINER trains with its defaults.
        train_dataset (`Dataset` or `IterableDataset`, *optional*):
            Rows with the column `prompt` (a text, or a list of messages) and the columns that the
            reward functions take, such as `solution`.
        kwargs:
            All other arguments of `GRPOTrainer`, such as `eval_dataset`, `processing_class`,
            `callbacks`, `peft_config` and `tools`.

    Raises:
        ValueError: Settings contradict each other, the data set has too few prompts for a
            generation batch, or a column that a reward function needs is missing.

    Example:

    ```python
    from trl_miner import MinerGRPOConfig, MinerGRPOTrainer
    from trl_miner.data import arithmetic
    from trl_miner.rewards import math_reward

    trainer = MinerGRPOTrainer(
        model=arithmetic.MODEL,  # or a model on the Hub
        reward_funcs=math_reward,
        args=MinerGRPOConfig(output_dir="out", max_steps=2, use_cpu=True, bf16=False),
        train_dataset=arithmetic.load_dataset("train"),  # columns: prompt, solution
    )
    trainer.train()
    ```
    """

    args: MinerGRPOConfig
    num_generations: int
    num_generations_eval: int
    epsilon_low: float
    epsilon_high: float
    num_iterations: int
    _buffered_inputs: Any
    _logs: Any

    _config, _trl_config = MinerGRPOConfig, GRPOConfig

    if not TYPE_CHECKING:  # where the signature is TRL's, too

        @functools.wraps(GRPOTrainer.__init__)
        def __init__(self, model, reward_funcs=None, args=None, *rest, **kwargs) -> None:
            args = self._settings(model, args)
            check_trainable(model, kwargs.get("peft_config"))
            with sending_full_weights():
                super().__init__(model, reward_funcs, args, *rest, **kwargs)
            if self.accelerator.is_main_process:
                warn_of_slow_bf16(self.accelerator)
            self._add_base()
            self._add_prompts()
            self._add_steps()

    def _add_prompts(self) -> None:
        """Add what draws prompts and generates for them."""
        args = self.args
        self._batch: GenerationBatch | None = None  # the one under way
        self._sampler: Sampler | None = None  # in `sample_held_out`
        self._is_sampling_alone = False  # there, too
        self._is_looping = False  # in TRL's loop of tool calls, where processes generate together
        self.history = PromptHistory(args, self.num_generations)
        self.resumable.add("history", self.history, follows_batches=True)
        self._prompts = PromptSource(args, self.history.selection)
        self.resumable.add("prompts", self._prompts, follows_batches=True)
        self._draws_prompts = draws_prompts(args)
        has_tools = bool(self.tools or self.environment_factories)
        prompts_can_be_recognised(args, has_environment=bool(self.environment_factories))
        prompts_can_be_drawn(args, self.train_dataset, has_tools=has_tools)

    def _refuse_overrides(self) -> None:
        """Refuse overrides of a user that would be passed over, or called twice.

        Raises:
            ValueError: There is one.
        """
        drawing, names = self._draws_prompts, ["get_train_dataloader", "_get_train_sampler"]
        if drawing and (overriding := overridden(self, names)):
            raise ValueError(
                f"{drawing} draws prompts in the place of TRL's dataloader: got"
                f" {type(self).__name__}, which overrides {', '.join(overriding)}. Order the"
                " training set beforehand, or leave it out."
            )
        in_rounds = drawing and drawing != "prompt_selection"
        if in_rounds and (overriding := overridden(self, ["_generate", "_calculate_rewards"])):
            raise ValueError(
                f"{drawing} generates and scores a batch in rounds, and TRL once more takes what"
                f" they made: got {type(self).__name__}, which overrides {', '.join(overriding)}"
                " and would change it twice. Change rewards in the reward function, or leave it"
                " out."
            )
        if self._policy_loss is not None:
            refuse_own_loss(self, f"policy_loss={self.args.policy_loss}", [FORWARD])

    def _add_steps(self) -> None:
        """Add what scores tokens, and what an optimizer step does besides TRL's."""
        self.forwards = Forwards(self)
        self.sampler_check: SamplerCheck | None = None  # None: the sampler's log-probs are not used
        if takes_sampler_logps(self):
            self.sampler_check = SamplerCheck(self.temperature, self.log_train_metric)
        self.optimizer_step = OptimizerStep(self)
        self._policy_loss = (
            PolicyLoss(self) if self.args.policy_loss_method.function is not None else None
        )
        # what happens between the forward of a loss and its arithmetic
        self._after_forward: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
        self._gradient_share: GradientShare | None = None
        if self.args.log_gradient_share or self.args.dose_share is not None:
            self._gradient_share = GradientShare(self)
            self.resumable.add("dose", self._gradient_share)
            self.add_callback(self._gradient_share)

    # A training, step by step.

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse_overrides()
        self.optimizer_step.reset()
        return super().train(*args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        with self.phase("training step"), self.optimizer_step.counting():
            loss: Tensor = super().training_step(*args, **kwargs)
        if self._step % self._cycle == 0:
            self.resumable.end_cycle()
        return loss

    @property
    def _cycle(self) -> int:
        """The micro-steps that train on a generation batch."""
        return int(self.args.steps_per_generation * self.num_iterations)

    def rollouts_under_way(self) -> tuple[list[dict[str, Any]], int] | None:
        return (self._buffered_inputs, self._step) if self._step % self._cycle else None

    def take_rollouts(self, batches: list[dict[str, Any]], micro_step: int) -> None:
        self._buffered_inputs, self._step = batches, micro_step

    # A generation batch, in the order of what happens to it.

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Return TRL's batch of rollouts, in training with the advantages of the estimators.

        1. TRL's sampler draws prompts, or `_draw_prompts` does.
        2. `_roll_out`: TRL generates rollouts (`_generate`) and scores them
           (`_calculate_rewards`).
        3. `_count_batch` records how each prompt came out.
        4. `_estimate_advantages` sorts the prompts into PH, HE and NH. Their methods replace TRL's
           advantages (N,) by token advantages (B, T) and ask `Scores` for log-probs of the rows
           they need; a dose scales some.
        5. `tell` tells the observers.
        6. The loss of each optimizer step is `_compute_loss`, on micro-batches of rows of like
           length.
        """
        if not self.model.training:  # evaluation is plain GRPO
            return super()._generate_and_score_completions(inputs)
        self._batch = GenerationBatch(
            len(inputs) * current_world().size, PromptOutcomes(self.num_generations)
        )
        try:
            return self._make_batch(inputs, self._batch)
        finally:
            self._batch = None

    def _make_batch(self, rows: Any, batch: GenerationBatch) -> dict[str, Any]:
        if self._draws_prompts:
            rows = self._draw_prompts(batch, len(rows))
        output, scores = self._roll_out(rows)
        if batch.prepared is None:
            self.note_rewards(rows, self._rewards_of(batch), batch.completions)
        self._count_batch(batch)
        return self._estimate_advantages(rows, output, scores, batch)

    def _draw_prompts(self, batch: GenerationBatch, num_rows: int) -> list[Any]:
        """Return this process's rows of the next generation batch. Every process must call it."""
        self._prompts.begin(self.train_dataset)
        if self._draws_prompts == "prompt_selection":
            return self._prompts.draw_rows(num_rows)
        sample = sample_dynamically if self.args.dynamic_sampling else sample_adaptively
        for name, value in sample(self, self._prompts, batch, num_rows).items():
            self.log_train_metric(name, float(value))
        assert batch.prepared is not None, "it has been sampled"
        batch.rewards_NF = batch.prepared.rewards_NF
        return batch.prepared.rows

    def _roll_out(self, inputs: Any) -> tuple[dict[str, Any], Scores]:
        """Return TRL's batch, generated, scored and with TRL's advantages, and what is known of the
        old policy."""
        # What an estimator asks of every row comes for next to nothing with TRL's own forward,
        # where TRL makes one.
        wanted = {name for method in self.args.estimators for name in method.scores}
        with self.forwards.collecting(wanted) as statistics:
            output = super()._generate_and_score_completions(inputs)
        scores = {}
        if "old_per_token_logps" in output:  # else what was found is of the reference model
            scores = {**statistics, "old_logps": output["old_per_token_logps"]}
        return output, Scores(output, scores, self.forwards, self.sampler_check)

    def _rewards_of(self, batch: GenerationBatch) -> Tensor:
        """Return (N, F) the rewards that TRL has taken: those of `_calculate_rewards`, or of
        whoever overrides it."""
        if overridden(self, ["_calculate_rewards"]):
            # TRL has logged them, a column for each function
            columns = [list(self._logs["rewards"][name]) for name in self.reward_func_names]
            table_FN = torch.tensor(columns, device=self.accelerator.device)
            batch.rewards_NF = table_FN[:, -batch.num_generated :].T
        assert batch.rewards_NF is not None, "TRL scores a batch before it returns it"
        return batch.rewards_NF

    def note_rewards(self, rows: Any, rewards_NF: Tensor, completions: Sequence[Any]) -> None:
        """Note the rewards of a batch, or of a round of one, and how its prompts came out. Every
        process must call it."""
        assert self._batch is not None, "it is of a training batch"
        check_rewards(self.reward_func_names, rewards_NF)
        self._watch.observe(rewards_NF, completions)
        self._batch.outcomes.add(
            rows,
            total_rewards(rewards_NF, self.reward_weights),
            self.verifier.rewards(rewards_NF),
            correct_threshold=self.args.correct_threshold,
        )

    def _count_batch(self, batch: GenerationBatch) -> None:
        """Record how the prompts of a batch came out, and count it."""
        for name, value in self.history.observe(batch.outcomes).items():
            self.log_train_metric(name, value)
        self.totals.generated += batch.num_generated
        self.totals.tokens += int(
            current_world().sum(torch.tensor(batch.num_tokens, device=self.accelerator.device))
        )

    def _generate(self, prompts: Any) -> tuple[Any, ...]:
        batch = self._batch
        if batch is not None and batch.prepared is not None:  # it was generated in rounds
            return batch.prepared.generated
        with self.phase("generation"):
            generated: tuple[Any, ...] = super()._generate(prompts)
        if self._is_sampling_alone:
            raise _Sampled(generated)
        if batch is not None:
            batch.num_tokens += num_sampled_tokens(generated)
        return generated

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        batch = self._batch
        if batch is not None and batch.prepared is not None:  # it was scored in rounds
            return batch.prepared.rewards_NF
        with self.phase("rewards"):
            rewards_NF: Tensor = super()._calculate_rewards(
                inputs, prompts, completions, completion_ids_list
            )
        if batch is None:
            check_rewards(self.reward_func_names, rewards_NF)
        else:
            batch.rewards_NF, batch.completions = rewards_NF, completions
        return rewards_NF

    def _tool_call_loop(self, prompts: Any, prompt_ids: Any, *args: Any) -> Any:
        """Return what TRL's loop returns, after a part in each generation that other processes make
        after its end.

        TRL's loop ends on each process once none of its own rollouts calls a tool. A vLLM server,
        its tensor parallelism, ZeRO-3 and FSDP generate on all processes at once, so that the
        others would wait forever.
        """
        self._is_looping = self.use_vllm or self.is_fsdp_enabled or self.is_deepspeed_enabled
        result = super()._tool_call_loop(prompts, prompt_ids, *args)
        must_agree, self._is_looping = self._is_looping, False
        while must_agree and (count := self._most_prompts(0)):
            self._generate_single_turn([prompt_ids[0]] * count, None, {}, 1)
        return result

    def _most_prompts(self, count: int) -> int:
        """Return the most prompts that a process is about to generate for, `count` on this one; 0:
        none is. Every process must call it."""
        return int(
            current_world().gather(torch.tensor([count], device=self.accelerator.device)).max()
        )

    def _generate_single_turn(
        self, prompt_ids: Any, images: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        if self._sampler is not None and images is None:
            return self._sampler(prompt_ids), None
        count, most = (
            len(prompt_ids),
            (self._most_prompts(len(prompt_ids)) if self._is_looping else 0),
        )
        if self.use_vllm and count < most:
            # TRL hands the completions of all processes out in equal shares, whoever asked for them
            # (https://github.com/huggingface/trl/pull/6673).
            prompt_ids, images = (
                [*rows, *rows[:1] * (most - count)] if rows else rows
                for rows in (prompt_ids, images)
            )
            sampled = super()._generate_single_turn(prompt_ids, images, *args, **kwargs)
            return tuple(rows and rows[:count] for rows in sampled)
        if self.use_vllm or self.rollout_func is not None:
            return super()._generate_single_turn(prompt_ids, images, *args, **kwargs)
        with self.casting_once(), neutral_settings(self.accelerator.unwrap_model(self.model)):
            return super()._generate_single_turn(prompt_ids, images, *args, **kwargs)

    def _estimate_advantages(
        self, rows: Any, output: dict[str, Any], scores: Scores, batch: GenerationBatch
    ) -> dict[str, Any]:
        """Return TRL's batch with the advantages of the estimators, in a new dict."""
        rewards_NF = batch.rewards_NF
        assert rewards_NF is not None, "it has been scored"
        start, world, args = time.perf_counter(), current_world(), self.args
        rewards_N = total_rewards(rewards_NF, self.reward_weights)
        verifier_rewards_N = self.verifier.rewards(rewards_NF)
        advantages_N = world.gather(output["advantages"])
        if batch.statistics is not None:
            advantages_N = batch.statistics.advantages(rewards_N, args.scale_rewards)
        ungated: dict[str, Any] = {"rewards_N": rewards_N, "advantages_N": advantages_N}
        kinds, rewards_N, advantages_N = self._sort_groups(
            rewards_N, advantages_N, verifier_rewards_N
        )
        rollouts = Rollouts(
            rewards_N,
            advantages_N,
            loss_mask(output),
            kinds,
            self.num_generations,
            scores,
            world,
            correct=partial(correct_rollouts, verifier_rewards_N, args.correct_threshold),
            prompt_keys=lambda: self.history.prompt_keys().to(rewards_N.device),
            past_correct=lambda: self.history.past_correct().to(rewards_N.device),
            texts=lambda: completion_texts(output, self.processing_class),
            seed=args.seed * 2**40 + self.totals.generated,
        )
        result = estimate(args.composition, rollouts, args.knobs)
        if self._gradient_share is not None:
            result = self._gradient_share.give_dose(result, rollouts)
        self._log_estimate(kinds, advantages_N, result, time.perf_counter() - start)
        self.tell(
            ScoredBatch(
                step=self.state.global_step + 1,
                steps=steps_of_batch(
                    self.state.global_step,
                    self.optimizer_step.micro_step,
                    self._cycle,
                    accumulation=args.gradient_accumulation_steps,
                    max_steps=self.state.max_steps,
                ),
                rows=rows,
                outcomes=batch.outcomes,
                rollouts=replace(rollouts, **ungated),
                verifier_rewards_N=verifier_rewards_N,
                estimate=result,
                token_rows=partial(token_rows, output, rollouts, result.advantages_BT),
            )
        )
        self._replace_logged_advantages(result.advantages_N)
        return with_parts({**output, "advantages": result.advantages_BT}, kinds, args)

    # The loss of a micro-batch.

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        plan = self.optimizer_step.find_plan()
        if self._policy_loss is not None:
            self._policy_loss.prepare(plan)
        if plan is not None:
            return self.optimizer_step.compute_loss(model, plan)
        return self.micro_batch_loss(model, inputs)

    def micro_batch_loss(self, model: Any, inputs: dict[str, Any], weight: float = 1.0) -> Tensor:
        """Return the loss of a micro-batch, which counts with this weight. Every process must call
        it."""
        if self._gradient_share is not None:
            self._gradient_share.add(inputs, weight)
        return self.call_loss(model, inputs) * weight

    def call_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        change: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None,
    ) -> Tensor:
        """Return TRL's loss of some rows, with what `policy_loss` puts into it after its forward,
        whose result `change` may replace."""
        inputs = dict(inputs)

        def after(result: tuple[Any, ...]) -> tuple[Any, ...]:
            """TRL's loss looks for all else in `inputs` after its forward."""
            result = result if change is None else change(result)
            if self._policy_loss is not None:
                self._policy_loss.rewrite(inputs, result[0])
            return result

        # `rewrite` may change the bounds.
        bounds = {"epsilon_low": self.epsilon_low, "epsilon_high": self.epsilon_high}
        with holding(self, _after_forward=after, **bounds):
            loss: Tensor = super()._compute_loss(model, inputs)
        return loss

    def _get_per_token_logps_and_entropies(
        self, model: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        result = self.forwards.run(model, *args, **kwargs)
        return result if self._after_forward is None else self._after_forward(result)

    def trl_forward(self, model: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return what TRL's own forward returns: log-probs (B, T), entropies or None, and an
        auxiliary loss."""
        result: tuple[Any, ...] = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        return result

    def sample_held_out(
        self, rows: list[dict[str, Any]], num_samples: int, seed: int, sampler: Sampler | None
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Return completions of prompts as the reward functions see them in training. Nothing is
        logged.

        Prompts go through TRL's chat template with the settings of the training, and completions
        are parsed as there.

        Args:
            rows: Of a data set, as many on every process, each `num_samples` times in a row.
            num_samples: Rollouts per prompt.
            seed: Of the samples. Every process must call it.
            sampler: Returns tokens of completions by those of prompts; None: as TRL samples in an
                evaluation, and always where the model `generates_in_turns`.

        Returns:
            Completions, their tokens, and the columns that a `rollout_func` adds.
        """
        kept, self.num_generations_eval, self._is_sampling_alone = (
            self.num_generations_eval,
            num_samples,
            True,
        )
        self._sampler = None if self.generates_in_turns else sampler
        try:
            with self.evaluating(), self.catching_metrics(), self.undoing_draws():
                torch.manual_seed(seed)
                self._generate_and_score_completions(rows)
        except _Sampled as sampled:
            (generated,) = sampled.args
            return generated[COMPLETIONS], generated[COMPLETION_IDS], generated[EXTRA_FIELDS] or {}
        finally:
            self.num_generations_eval, self._is_sampling_alone, self._sampler = kept, False, None
        raise RuntimeError("TRL must generate its rollouts by _generate: it has not.")

    def rewards_of(
        self, rows: list[dict[str, Any]], completions: Any, completion_ids: Any
    ) -> Tensor:
        """Return (N, F) the rewards of what `sample_held_out` has returned, from all reward
        functions, as in training. Every process must call it."""
        prompts = [row["prompt"] for row in rows]
        return self._calculate_rewards(rows, prompts, completions, completion_ids)

    @property
    def draws_held_out_with_vllm(self) -> bool:
        """Whether held-out samples come from the vLLM of the training. Before a training FSDP has not
        sharded the weights yet, and TRL cannot send them."""
        is_wrapped = self.model_wrapped is not self.model
        return bool(self.use_vllm) and (is_wrapped or not self.is_fsdp_enabled)

    def sample_with_vllm(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]
    ) -> list[list[int]]:
        """Return a completion of each prompt, in tokens, from the vLLM of the training, which gets the
        weights first. Every process must call it, with as many prompts."""
        with seeding(self.vllm_generation, seeds):
            completion_ids, _ = super()._generate_single_turn(
                [list(prompt) for prompt in prompts], None, {}, 1
            )
        return [list(ids) for ids in completion_ids]

    def _replace_logged_advantages(self, advantages_N: Tensor) -> None:
        """Show the loss's advantages in the completions table: TRL has logged its own by now."""
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), len(advantages_N))):
            logged.pop()
        logged.extend(advantages_N.tolist())


class _Sampled(Exception):
    """Leaves TRL's method where it has generated."""
