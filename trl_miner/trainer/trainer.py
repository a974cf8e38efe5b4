"""`MinerGRPOTrainer`: what happens to a generation batch, from its prompts to the loss, in the
order of this file.

# N rollouts of the global generation batch, B of this process, F reward functions, T padded
completion tokens
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

from ..config import MinerGRPOConfig
from ..data.base_model import find_model
from ..data.prompt_form import form_of_rows
from ..distributed import current_world
from ..evaluation.seeded_sampling import neutral_settings
from ..heartbeat import GENERATION, TRAINING_STEP, phase
from ..launching.server import free_port
from ..methods import Rollouts
from ..methods.compose import estimate
from ..on_cpu import warn_of_slow_bf16
from ..reward_functions import check_rewards
from ..rules import draws_prompts, prompts_can_be_drawn, prompts_can_be_recognised
from .generation_batch import (
    COMPLETION_IDS,
    COMPLETIONS,
    EXTRA_FIELDS,
    GenerationBatch,
    completion_texts,
    correct_rollouts,
    num_sampled_tokens,
    total_rewards,
)
from .gradient_share import GradientShare, with_parts
from .micro_batches import loss_mask
from .policy_loss import PolicyLoss
from .prompt_log import PromptLog
from .prompts import PromptSource
from .quantized_sync import FullWeights
from .round_sampling import sample_adaptively, sample_dynamically
from .row_layout import FORWARD, overridden
from .run import RunState
from .run_trainer import RunTrainer, own_config
from .sampler_check import SamplerCheck, takes_sampler_logps
from .scoring import Forwards, Scores
from .step import OptimizerStep
from .token_credit import record_credit

logger = logging.getLogger(__name__)
Sampler = Callable[[Sequence[Sequence[int]]], list[list[int]]]  # completions of prompts, in tokens


class MinerGRPOTrainer(RunTrainer, GRPOTrainer):
    """
    Drop-in for [`~trl.GRPOTrainer`] that also learns from prompts whose rollouts are all right
    (https://huggingface.co/papers/2601.04731), and trains the methods that this is compared with.

    Takes the arguments of [`~trl.GRPOTrainer`], with a [`MinerGRPOConfig`] as `args`. Generation,
    rewards, loss and evaluation are TRL's own; what changes are the advantages of a training batch,
    one for each token. `policy_loss` and `dynamic_sampling` change more, and are off by default.
    Evaluation is always plain GRPO.

    Which rollout is correct is decided at `correct_threshold` by the reward function that
    `correct_reward_func` names, else by the only one, else by the known verifier among them, else,
    with a warning, by all together. The log-probs under the old policy are those that TRL computed,
    else those of the sampler (a `rollout_func`, or vLLM without importance-sampling correction),
    else one forward over the PH rows alone.
    """

    args: MinerGRPOConfig
    num_generations_eval: int
    epsilon_low: float
    epsilon_high: float

    def __init__(
        self, model: Any, reward_funcs: Any = None, args: Any = None, *rest: Any, **kwargs: Any
    ) -> None:
        args = own_config(MinerGRPOConfig, model, args, self._name)
        _set_group_port(args)
        model = find_model(model) if isinstance(model, str) else model  # an embedded world's
        with patch.object(grpo_trainer, "VLLMGeneration", FullWeights):
            super().__init__(model, reward_funcs, args, *rest, **kwargs)
        if self.accelerator.is_main_process:
            warn_of_slow_bf16(self.accelerator)
        self._add_run()
        self._add_prompts()
        self._add_steps()

    def _add_prompts(self) -> None:
        """Add what draws prompts and generates for them."""
        args = self.args
        self._batch: GenerationBatch | None = None  # the one under way
        self._sampler: Sampler | None = None  # in `sample_held_out`
        self._is_sampling_alone = False  # there, too
        self._is_looping = False  # in TRL's loop of tool calls, where processes generate together
        self.ledger = PromptLog(self)
        self.add_callback(self.ledger)
        self._prompts: PromptSource | None = None  # once a batch of this training has begun
        self._draws_prompts = draws_prompts(args)
        has_tools = bool(self.tools or self.environment_factories)
        prompts_can_be_recognised(args, has_environment=bool(self.environment_factories))
        prompts_can_be_drawn(args, self.train_dataset, has_tools=has_tools)
        if self._draws_prompts and (
            own := overridden(self, ("get_train_dataloader", "_get_train_sampler"))
        ):
            raise ValueError(
                f"{self._draws_prompts} draws prompts in the place of TRL's dataloader: got"
                f" {type(self).__name__}, which overrides {', '.join(own)}. Order the training set"
                " beforehand, or leave it out."
            )

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
        self._gradient_share: GradientShare | None = None
        if self.args.log_gradient_share or self.args.dose_share is not None:
            self._gradient_share = GradientShare(self)
            self.add_callback(self._gradient_share)

    # A training, step by step.

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self.optimizer_step.reset()
        self._prompts = None
        return super().train(*args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        self._checkpoints.restore_rollouts()
        with phase(TRAINING_STEP, self.state.global_step), self.optimizer_step.counting():
            loss: Tensor = super().training_step(*args, **kwargs)
        if self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
            RunState.of(self).cycle_start = RunState.of(self).prompts
        return loss

    # A generation batch, in the order of what happens to it.

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Return TRL's batch of rollouts, in training with the advantages of the estimators.

        1. TRL's sampler draws prompts, or `_draw_prompts` does.
        2. TRL generates rollouts and scores them: `_roll_out`, `_observe_rollouts`,
        `_observe_rewards`. 3. `_count_batch` records how each prompt came out.
        4. `_estimate_advantages` sorts the prompts into PH, HE and NH. Their methods replace TRL's
        advantages (N,) by
           token advantages (B, T) and ask `Scores` for log-probs of the rows they need; a dose
           scales some.
        5. The loss of each optimizer step is `_compute_loss`, on micro-batches of rows of like
        length.
        """
        with self._observing():
            if not self.model.training:  # evaluation is plain GRPO
                return super()._generate_and_score_completions(inputs)
            self._batch = GenerationBatch(num_generated=len(inputs) * current_world().size)
            try:
                return self._make_batch(inputs, self._batch)
            finally:
                self._batch = None

    def _make_batch(self, inputs: Any, batch: GenerationBatch) -> dict[str, Any]:
        if self._draws_prompts:
            inputs = self._draw_prompts(batch, len(inputs))
        if self.prompt_form is None:
            self.take_form(form_of_rows(inputs, self.args.chat_template_kwargs))
        output, scores = self._roll_out(inputs)
        self._count_batch(batch)
        return self._estimate_advantages(output, scores, batch.rewards_NF)

    def _draw_prompts(self, batch: GenerationBatch, num_rows: int) -> list[Any]:
        """Return this process's rows of the next generation batch. Every process must call it."""
        if self._prompts is None:
            self._prompts = PromptSource(self.train_dataset, self.args, self.ledger.selection)
            if (stream := RunState.of(self).prompts["stream"]) is not None:
                self._prompts.stream.load_state(stream)
        if self._draws_prompts == "prompt_selection":
            return self._prompts.draw_rows(num_rows)
        sample = sample_dynamically if self.args.dynamic_sampling else sample_adaptively
        for name, value in sample(self, self._prompts, batch, num_rows).items():
            self.log_train_metric(name, float(value))
        assert batch.prepared is not None, "it has been sampled"
        return batch.prepared.rows

    def _roll_out(self, inputs: Any) -> tuple[dict[str, Any], Scores]:
        """Return TRL's batch, generated, scored and with TRL's advantages, and what is known of the
        old policy."""
        # What an estimator asks of every row comes for next to nothing with TRL's own forward,
        # where TRL makes one.
        wanted = {name for method in self.args.estimators for name in method.scores}
        with self.forwards.collecting(wanted) as found:
            output = super()._generate_and_score_completions(inputs)
        known = {}
        if "old_per_token_logps" in output:  # else what was found is of the reference model
            known = {**found, "old_logps": output["old_per_token_logps"]}
        return output, Scores(output, known, self.forwards, self.sampler_check)

    def _count_batch(self, batch: GenerationBatch) -> None:
        """Record how the prompts of a batch came out, and count it."""
        state = RunState.of(self)
        self.ledger.record(batch.outcomes, self.state.global_step + 1)
        stream = None if self._prompts is None else self._prompts.stream.state()
        state.prompts = {"batches": state.prompts["batches"] + 1, "stream": stream}
        state.generated += batch.num_generated
        state.tokens += int(
            current_world().sum(torch.tensor(batch.num_tokens, device=self.accelerator.device))
        )

    @contextmanager
    def _observing(self) -> Iterator[None]:
        """See the rollouts and the rewards that TRL itself gets, from whoever overrides its
        methods."""
        generate, score = self._generate, self._calculate_rewards
        with (
            patch.object(self, "_generate", partial(self._observe_rollouts, generate)),
            patch.object(self, "_calculate_rewards", partial(self._observe_rewards, score)),
        ):
            yield

    def _observe_rollouts(
        self, generate: Callable[..., tuple[Any, ...]], *args: Any
    ) -> tuple[Any, ...]:
        batch = self._batch
        if batch is not None and batch.prepared is not None:  # it was generated in rounds
            return batch.prepared.generated
        with self.generating(GENERATION):
            generated = generate(*args)
        if self._is_sampling_alone:
            raise _Sampled(generated)
        if batch is not None:
            batch.num_tokens += num_sampled_tokens(generated)
        return generated

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

    def _most_prompts(self, own: int) -> int:
        """Return the most prompts that a process is about to generate for, `own` on this one; 0:
        none is. Every process must call it."""
        return int(
            current_world().gather(torch.tensor([own], device=self.accelerator.device)).max()
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
            found = super()._generate_single_turn(prompt_ids, images, *args, **kwargs)
            return tuple(rows and rows[:count] for rows in found)
        if self.use_vllm or self.rollout_func is not None:
            return super()._generate_single_turn(prompt_ids, images, *args, **kwargs)
        with self.casting_once(), neutral_settings(self.accelerator.unwrap_model(self.model)):
            return super()._generate_single_turn(prompt_ids, images, *args, **kwargs)

    def _observe_rewards(self, score: Callable[..., Tensor], inputs: Any, *args: Any) -> Tensor:
        batch = self._batch
        if batch is not None and batch.prepared is not None:  # it was scored in rounds
            rewards_NF = batch.prepared.rewards_NF
        else:
            with phase("rewards", self.state.global_step):
                rewards_NF = score(inputs, *args)
            check_rewards(self.reward_func_names, rewards_NF)
            if batch is not None:
                self._watch.observe(rewards_NF, args[1])
                batch.outcomes.add(
                    inputs,
                    total_rewards(rewards_NF, self.reward_weights),
                    self.verifier.rewards(rewards_NF),
                    num_generations=self.num_generations,
                    correct_threshold=self.args.correct_threshold,
                )
        if batch is not None:
            batch.rewards_NF = rewards_NF
        return rewards_NF

    def _estimate_advantages(
        self, output: dict[str, Any], scores: Scores, rewards_NF: Tensor | None
    ) -> dict[str, Any]:
        """Return TRL's batch with the advantages of the estimators, in a new dict."""
        assert rewards_NF is not None, "TRL scores a batch before it returns it"
        start, world, args = time.perf_counter(), current_world(), self.args
        rewards_N = total_rewards(rewards_NF, self.reward_weights)
        verifier_rewards_N = self.verifier.rewards(rewards_NF)
        advantages_N = world.gather(output["advantages"])
        if self._batch is not None and self._batch.statistics is not None:
            advantages_N = self._batch.statistics.advantages(rewards_N, args.scale_rewards)
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
            prompt_keys=lambda: self.ledger.prompt_keys().to(rewards_N.device),
            past_correct=lambda: self.ledger.past_correct().to(rewards_N.device),
            texts=lambda: completion_texts(output, self.processing_class),
            seed=args.seed * 2**40 + RunState.of(self).generated,
        )
        result = estimate(args.composition, rollouts, args.knobs)
        if self._gradient_share is not None:
            result = self._gradient_share.give_dose(result, rollouts)
        self._log_estimate(kinds, advantages_N, result, time.perf_counter() - start)
        record_credit(
            self, output, replace(rollouts, **ungated), verifier_rewards_N, result.advantages_BT
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

    def call_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Return TRL's loss of some rows, with what `policy_loss` puts into it after its
        forward."""
        inputs = dict(inputs)
        ask: Callable[..., tuple[Any, ...]] = getattr(self, FORWARD)

        def forward(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
            """Return what TRL's loss gets, overrides included; it looks for all else in `inputs`
            after this."""
            result = ask(*args, **kwargs)
            if self._policy_loss is not None:
                self._policy_loss.rewrite(inputs, result[0])
            return result

        # `rewrite` may change the bounds.
        own: dict[str, Any] = {
            "epsilon_low": self.epsilon_low,
            "epsilon_high": self.epsilon_high,
            FORWARD: forward,
        }
        with patch.multiple(self, **own):
            loss: Tensor = super()._compute_loss(model, inputs)
        return loss

    def _get_per_token_logps_and_entropies(
        self, model: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        return self.forwards.run(model, *args, **kwargs)

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
            with self.evaluating(), self.dropping_metrics(), self.undoing_draws():
                torch.manual_seed(seed)
                self._generate_and_score_completions(rows)
        except _Sampled as sampled:
            (generated,) = sampled.args
            return generated[COMPLETIONS], generated[COMPLETION_IDS], generated[EXTRA_FIELDS] or {}
        finally:
            self.num_generations_eval, self._is_sampling_alone, self._sampler = kept, False, None
        raise RuntimeError("TRL must generate its rollouts by _generate: it has not.")

    def _replace_logged_advantages(self, advantages_N: Tensor) -> None:
        """Show the loss's advantages in the completions table: TRL has logged its own by now."""
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), len(advantages_N))):
            logged.pop()
        logged.extend(advantages_N.tolist())


class _Sampled(Exception):
    """Leaves TRL's method where it has generated."""


def _set_group_port(args: Any) -> None:
    """Choose a free `vllm_group_port` in the place of TRL's default, which any outgoing connection
    may have taken.

    With one that is taken, TRL's trainer and its server would wait forever.
    """
    is_served = args.use_vllm and args.vllm_mode == "server"
    if is_served and args.vllm_group_port in (None, GRPOConfig.vllm_group_port):
        args.vllm_group_port = free_port()
