"""`MinerGRPOTrainer`: what happens to a generation batch, from its prompts to the advantages of its tokens.

# N rollouts of the global generation batch, B of this process, F reward functions, T padded completion tokens
"""

import logging
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl import GRPOTrainer

from ..config import MinerGRPOConfig
from ..data.prompt_form import form_of_rows, write_form
from ..data.prompts import PromptForm
from ..distributed import current_world
from ..hub.model_card import describe_run
from ..launching.liveness import GENERATION
from ..methods import GRPO, Estimate, Rollouts
from ..methods.compose import estimate
from ..methods.groups import GroupKinds, gate_on_correctness, group_kinds
from ..progress import is_quiet
from ..reward_functions import check_reward_columns, check_rewards, checked, find_verifier
from ..runs.training_record import prompts_are_chats
from .checkpointing import RunState
from .correctness import CorrectnessWatch
from .dynamic_sampling import DynamicSampling
from .generation_batch import (
    COMPLETION_IDS,
    COMPLETIONS,
    EXTRA_FIELDS,
    GenerationBatch,
    completion_texts,
    num_sampled_tokens,
    prompt_keys,
    total_rewards,
)
from .gradient_share import with_group_kind
from .hooks import overridden
from .logits import check_logits
from .padding import loss_mask
from .patching import patched
from .prompt_log import PromptLog
from .prompts import PromptSource, check_drawable
from .quantized_sync import full_weights_for_vllm
from .reference import add_reference, is_scored_late, without_reference
from .run_trainer import RunTrainer
from .sampler_check import SamplerCheck, takes_sampler_logps
from .scoring import Forwards, Scores
from .token_credit import CreditRecorder
from .tool_turns import ToolTurns
from .trackers import CreditPageCallback

logger = logging.getLogger(__name__)
Sampler = Callable[[Sequence[Sequence[int]]], list[list[int]]]  # completions of prompts, in tokens


class MinerGRPOTrainer(RunTrainer):
    """
    Drop-in for [`~trl.GRPOTrainer`] that also learns from prompts whose rollouts are all right
    (https://huggingface.co/papers/2601.04731), and trains the methods that this is compared with.

    Takes the arguments of [`~trl.GRPOTrainer`], with a [`MinerGRPOConfig`] as `args` (a plain `GRPOConfig` gets
    MINER's defaults). Generation, rewards, loss and evaluation are TRL's own; what changes are the advantages of a
    training batch, one for each token. `policy_loss` and `dynamic_sampling` change more, and are off by default.
    Evaluation is always plain GRPO.

    Which rollout is correct is decided at `correct_threshold` by the reward function that `correct_reward_func` names,
    else by the only one, else by the known verifier among them, else, with a warning, by all together. The log-probs
    under the old policy are those that TRL computed, else those of the sampler (a `rollout_func`, or vLLM without
    importance-sampling correction), else one forward over the PH rows alone.

    Example:

    ```python
    from trl_miner import MinerGRPOConfig, MinerGRPOTrainer
    from trl_miner.rewards import math_reward

    trainer = MinerGRPOTrainer(
        model="Qwen/Qwen3-4B-Base",
        reward_funcs=math_reward,
        args=MinerGRPOConfig(output_dir="out", num_generations=16),
        train_dataset=dataset,  # columns: prompt, solution
    )
    trainer.train()
    ```
    """

    _tag_names = ["trl", "grpo", "miner"]
    _name = "MINER"
    _paper = {
        "title": "Miner: Mining Intrinsic Mastery for Data-Efficient RL in Large Reasoning Models",
        "id": "2601.04731",
        # docstyle-ignore
        "citation": textwrap.dedent("""\
            @article{jiang2026miner,
                title        = {{Miner: Mining Intrinsic Mastery for Data-Efficient RL in Large Reasoning Models}},
                author       = {Shuyang Jiang and Yuhao Wang and Ya Zhang and Yanfeng Wang and Yu Wang},
                year         = 2026,
                eprint       = {arXiv:2601.04731},
            }"""),
    }

    # As in `RunTrainer`: what a trainer without `__init__` has.
    _batch: GenerationBatch | None = None  # the one under way
    sampler_check: SamplerCheck | None = None  # of log-probs that come with the rollouts; None: they are not used
    _scores_reference_late = False  # once the advantages are known
    _draws_prompts = False  # in the place of TRL's dataloader
    _prompts: PromptSource | None = None  # draws them, once a batch of this training has begun
    _prompt_rows: Any = None  # the training set, as TRL's dataloader reads it
    _sampling: DynamicSampling | None = None
    _credit: CreditRecorder | None = None
    _turns: ToolTurns | None = None
    ledger: PromptLog | None = None
    prompt_form: PromptForm | None = None  # goes into the folder of every model that is saved; None: not known yet
    _sampler: Sampler | None = None  # in `sample_held_out`
    _is_sampling_alone = False  # there, too

    def __init__(self, model: Any, reward_funcs: Any = None, args: Any = None, *rest: Any, **kwargs: Any) -> None:
        args = _own_config(model, args)
        with full_weights_for_vllm():
            super().__init__(model, reward_funcs, args, *rest, **kwargs)
        self.evaluation: dict[str, dict[str, float]] = {}  # {"before": {"pass@1": ...}, ...}, shown on the model card
        if self._paper["id"] not in {method.arxiv for method in args.estimators}:  # the card must not credit it
            self._name, self._paper, self._tag_names = GRPOTrainer._name, GRPOTrainer._paper, GRPOTrainer._tag_names
        self._choose_verifier()
        columns = getattr(self.train_dataset, "column_names", None)
        if columns is not None and self.rollout_func is None:  # a stream's are unknown; a rollout adds its own
            needs_prompt = not getattr(self, "environment_factories", None)  # an environment may bring its own
            check_reward_columns(self.reward_func_names, self.reward_funcs, columns, needs_prompt=needs_prompt)
        if isinstance(self.train_dataset, Dataset):  # a stream's is seen in its first batch
            self._find_form(self.train_dataset)
        self.ledger = PromptLog(args, self.train_dataset, partial(RunState.of, self), lambda: self.resumed_from)
        self.add_callback(self.ledger)
        if takes_sampler_logps(self):
            is_needed = any(method.wants_sampler_logps for method in args.estimators)
            self.sampler_check = SamplerCheck(self.temperature, is_needed=is_needed, log=self.log_train_metric)
            self.add_callback(self.sampler_check)
        self._scores_reference_late = is_scored_late(self)
        for method in args.estimators:
            if method.reads_logits:
                check_logits(self.model, method.name)
        self._draws_prompts = args.dynamic_sampling or self.ledger.selection is not None
        if self._draws_prompts:
            check_drawable(args, self.train_dataset, self.num_generations)
            if overridden(self, ("get_train_dataloader",)):
                raise ValueError(
                    f"dynamic_sampling and prompt_selection draw prompts in the place of the dataloader: got "
                    f"{type(self).__name__}, which overrides get_train_dataloader. Change the training set instead, "
                    f"or leave them out."
                )
        if args.dynamic_sampling:
            self._sampling = DynamicSampling(self)
        self._turns = ToolTurns(self)
        self.num_generations_eval: int
        self.reward_funcs: list[Any]
        if args.log_token_credit:
            self._credit = CreditRecorder(self)
            # before the trackers' own callbacks, which close them at the end
            self.callback_handler.callbacks.insert(0, CreditPageCallback(self))

    def _choose_verifier(self) -> None:
        self.verifier = find_verifier(
            self.reward_func_names, self.args.correct_reward_func, self.reward_weights.tolist()
        )
        if self.args.gate_on_correctness and self.verifier.is_guess:
            raise ValueError(
                f"gate_on_correctness needs to know which reward function decides what is correct: got "
                f"{', '.join(self.reward_func_names)}, of which none is a known verifier. Set correct_reward_func to "
                f"the one that verifies, or to several joined by '+'."
            )
        self._watch = CorrectnessWatch(self)
        if not self.is_world_process_zero():
            return
        if self.verifier.is_guess:
            logger.warning(self.verifier.reason)
        elif len(self.reward_funcs) > 1 and self.args.correct_reward_func is None and not is_quiet():
            print(self.verifier.reason)

    # A generation batch, in the order of what happens to it.

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Return TRL's batch of rollouts with the advantages of the estimators.

        `_roll_out` has TRL generate, score and compute its own advantages; `_estimate_advantages` sorts the prompts
        into PH, HE and NH and lets the methods replace advantages.
        """
        forwards = self.forwards
        if forwards is None or self.ledger is None:
            return super()._generate_and_score_completions(inputs)
        with self._observing():
            if not self.model.training:  # evaluation is plain GRPO
                return super()._generate_and_score_completions(inputs)
            return self._make_batch(inputs, forwards, self.ledger)

    def _make_batch(self, inputs: Any, forwards: Forwards, ledger: PromptLog) -> dict[str, Any]:
        self._batch = GenerationBatch(num_generated=len(inputs) * current_world().size)
        try:
            ledger.begin_batch()
            if self._draws_prompts:
                inputs = self._draw_prompts(self._batch, len(inputs))
            if self.prompt_form is None:
                self._find_form(inputs)
            output, scores = self._roll_out(inputs, forwards)
            step, metrics = self.state.global_step + 1, self._metrics["train"]
            ledger.record(self._batch.outcomes, step=step, num_generations=self.num_generations, metrics=metrics)
            RunState.of(self).count_batch(None if self._prompts is None else self._prompts.stream.state())
            self._count_generated(self._batch)
            self._watch.end_batch()
            output = self._estimate_advantages(output, scores, self._batch.rewards_NF)
            return add_reference(self, output) if self._scores_reference_late else output
        finally:
            self._batch = None

    def _roll_out(self, inputs: Any, forwards: Forwards) -> tuple[dict[str, Any], Scores]:
        """Return TRL's batch, generated, scored and with TRL's advantages, and what is known of the old policy."""
        # What an estimator asks of every row comes for next to nothing with TRL's own forward, where TRL makes one.
        wanted = {name for method in self.args.estimators for name in method.scores}
        late_reference = without_reference(self) if self._scores_reference_late else nullcontext()
        with forwards.collecting(wanted) as found, late_reference:
            output = super()._generate_and_score_completions(list(inputs))  # of rows that are read now
        if "old_per_token_logps" in output:
            known = {**found, "old_logps": output["old_per_token_logps"]}
        else:  # what was found is of the reference model
            known = {}
        return output, Scores(output, known, forwards, self.sampler_check)

    @contextmanager
    def _observing(self) -> Iterator[None]:
        """See the rollouts and the rewards that TRL itself gets, from whoever overrides its methods."""
        generate, score = self._generate, self._calculate_rewards
        with (
            patched(self, "_generate", partial(self._observe_rollouts, generate)),
            patched(self, "_calculate_rewards", partial(self._observe_rewards, score)),
        ):
            yield

    def _observe_rollouts(self, generate: Callable[..., tuple[Any, ...]], *args: Any) -> tuple[Any, ...]:
        batch = self._batch
        if batch is not None and batch.prepared is not None:  # dynamic sampling has generated
            return batch.prepared.generated
        with self.watching(GENERATION):
            generated = generate(*args)
        if self._is_sampling_alone:
            raise _Sampled(generated)
        if batch is not None:
            batch.num_tokens += num_sampled_tokens(generated)
        return generated

    def _tool_call_loop(self, prompts: Any, prompt_ids: Any, *args: Any) -> Any:
        loop = partial(super()._tool_call_loop, prompts, prompt_ids, *args)
        if self._turns is None:
            return loop()
        return self._turns.run(loop, partial(self._generate_single_turn, [prompt_ids[0]], None, {}, 1))

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if self._sampler is not None and args[1] is None:  # without images
            return self._sampler(args[0]), None
        if self._turns is not None:
            self._turns.announce()
        if self.use_vllm or self.rollout_func is not None:
            return super()._generate_single_turn(*args, **kwargs)
        with self.casting_once():
            return super()._generate_single_turn(*args, **kwargs)

    def _observe_rewards(self, score: Callable[..., Tensor], inputs: Any, *args: Any) -> Tensor:
        batch = self._batch
        if batch is not None and batch.prepared is not None:  # dynamic sampling has scored
            rewards_NF = batch.prepared.rewards_NF
        else:
            with self._watchdog.phase("rewards"), self._checked_reward_funcs():
                rewards_NF = score(inputs, *args)
            rewards_N = total_rewards(rewards_NF, self.reward_weights)
            check_rewards(self.reward_func_names, rewards_NF, rewards_N)
            if batch is not None and self.ledger is not None:
                self._watch.observe(rewards_NF)
                batch.outcomes.add(
                    inputs,
                    rewards_N,
                    self.verifier.rewards(rewards_NF),
                    num_generations=self.num_generations,
                    correct_threshold=self.args.correct_threshold,
                )
        if batch is not None:
            batch.rewards_NF = rewards_NF
        return rewards_NF

    @contextmanager
    def _checked_reward_funcs(self) -> Iterator[None]:
        """Meanwhile a reward function that returns no list is named: TRL iterates over whatever it gets."""
        own: list[Any] = self.reward_funcs
        self.reward_funcs = [*map(checked, self.reward_func_names, own)]
        try:
            yield
        finally:
            self.reward_funcs = own

    def _estimate_advantages(
        self, output: dict[str, Any], scores: Scores, rewards_NF: Tensor | None
    ) -> dict[str, Any]:
        """Return TRL's batch with the advantages of the estimators, in a new dict."""
        assert rewards_NF is not None, "TRL scores a batch before it returns it"
        start, world, args = time.perf_counter(), current_world(), self.args
        rewards_N = total_rewards(rewards_NF, self.reward_weights)
        verifier_rewards_N = self.verifier.rewards(rewards_NF)
        advantages_N = world.gather(output["advantages"])
        ungated: dict[str, Any] = {"rewards_N": rewards_N, "advantages_N": advantages_N}
        if args.gate_on_correctness:
            rewards_N, advantages_N, output = self._gate(rewards_N, advantages_N, verifier_rewards_N, output)
        kinds = group_kinds(
            rewards_N,
            self.num_generations,
            correct_threshold=args.correct_threshold,
            verifier_rewards_N=verifier_rewards_N,
            advantages_N=advantages_N,
        )
        self._watch.look_for_all_right(verifier_rewards_N, kinds)
        self._watch.look_at_range(ungated["rewards_N"])
        mask_BT = loss_mask(output)
        rollouts = Rollouts(
            rewards_N,
            advantages_N,
            mask_BT,
            kinds,
            self.num_generations,
            scores,
            world,
            prompt_keys=lambda: prompt_keys(output),
            texts=lambda: completion_texts(output, self.processing_class),
            seed=args.seed * 2**40 + RunState.of(self).generated,
        )
        result = estimate(args.composition, rollouts, args.knobs)
        if self._gradient_share is not None:
            result = self._gradient_share.give_dose(result, rollouts)
        self._log_estimate(kinds, advantages_N, result, time.perf_counter() - start)
        if self._credit is not None:
            self._credit.record(output, replace(rollouts, **ungated), verifier_rewards_N, result)
        self._replace_logged_advantages(result.advantages_N)
        return with_group_kind({**output, "advantages": result.advantages_BT}, kinds)

    def _gate(
        self, rewards_N: Tensor, advantages_N: Tensor, verifier_rewards_N: Tensor, output: dict[str, Any]
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return rewards, advantages and TRL's batch without what the gate takes from them."""
        gated = gate_on_correctness(
            rewards_N,
            advantages_N,
            self.num_generations,
            verifier_rewards_N=verifier_rewards_N,
            correct_threshold=self.args.correct_threshold,
        )
        self.log_train_metric("groups/gated", gated.is_gated_N.float().mean().item())
        self._replace_logged_advantages(gated.advantages_N)
        local = current_world().local_slice(len(output["advantages"]))
        return gated.rewards_N, gated.advantages_N, {**output, "advantages": gated.advantages_N[local]}

    @property
    def generates_in_turns(self) -> bool:
        """Whether tools, environments or a `rollout_func` take part in rollouts: one call of `generate` draws none."""
        return bool(self.tools or self.environment_factories or self.rollout_func)

    def sample_held_out(
        self, rows: list[dict[str, Any]], num_samples: int, seed: int, sampler: Sampler | None
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Return completions of prompts as the reward functions see them in training. Nothing is logged.

        Prompts go through TRL's chat template with the settings of the training, and completions are parsed as there.

        Args:
            rows: Of a data set, as many on every process, each `num_samples` times in a row.
            num_samples: Rollouts per prompt.
            seed: Of the samples. Every process must call it.
            sampler: Returns tokens of completions by those of prompts; None: as TRL samples in an evaluation, and
                always where the model `generates_in_turns`.

        Returns:
            Completions, their tokens, and the columns that a `rollout_func` adds.
        """
        kept, self.num_generations_eval, self._is_sampling_alone = self.num_generations_eval, num_samples, True
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

    # What the run says of its prompts and generation batches.

    def _find_form(self, rows: Any) -> None:
        form = form_of_rows(rows, self.args.chat_template_kwargs)
        if form is not None and self.generates_in_turns:  # tools and environments add words of their own
            form = replace(form, is_known=False)
        self.prompt_form = form

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Save the model as transformers does, and beside it the form of its prompts. Every process must call it.

        Args:
            output_dir: The folder; None: that of the run.
            *args: Of transformers' `Trainer.save_model`.
            **kwargs: Likewise.
        """
        super().save_model(output_dir, *args, **kwargs)
        if self.args.should_save:
            write_form(Path(output_dir or self.args.output_dir), self.prompt_form)

    def _count_generated(self, batch: GenerationBatch) -> None:
        state, num_tokens = RunState.of(self), torch.tensor(batch.num_tokens, device=self.accelerator.device)
        state.generated += batch.num_generated
        state.tokens += int(current_world().sum(num_tokens))

    def _log_estimate(self, kinds: GroupKinds, advantages_N: Tensor, result: Estimate, seconds: float) -> None:
        """Log which rollouts GRPO uses and which the estimators do."""
        metrics, state = self._metrics["train"], RunState.of(self)
        teaches_N = (advantages_N != 0) & kinds.is_grpo_N  # under GRPO
        used_N = (result.advantages_N != 0) & (teaches_N | (result.advantages_N != advantages_N))
        shares = torch.stack([*kinds, teaches_N, used_N & ~teaches_N, used_N]).float().mean(dim=1).tolist()
        names = [f"groups/{kind}" for kind in ("ph", "he", "nh", "unscorable")]
        names += [f"rollouts/{kind}" for kind in ("grpo", "recovered", "used")]
        for name, share in zip(names, shares, strict=True):
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

    def _replace_logged_advantages(self, advantages_N: Tensor) -> None:
        """Show the loss's advantages in the completions table: TRL has logged its own by now."""
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), len(advantages_N))):
            logged.pop()
        logged.extend(advantages_N.tolist())

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        super().create_model_card(*args, **kwargs)
        path = Path(self.args.output_dir) / "README.md"
        if self.forwards is not None and self.is_world_process_zero() and path.is_file():
            card = describe_run(
                path.read_text(encoding="utf-8"),
                base_model=self.model.config._name_or_path,
                args=self.args,
                log_history=self.state.log_history,
                evaluation=self.evaluation,
                is_chat=prompts_are_chats(self),
            )
            path.write_text(card, encoding="utf-8")

    # Dynamic sampling and prompt selection draw prompts where TRL's dataloader would.

    def get_train_dataloader(self) -> Any:
        dataloader = super().get_train_dataloader()
        self._prompt_rows, self._prompts = dataloader.dataset, None
        return dataloader

    def _draw_prompts(self, batch: GenerationBatch, num_rows: int) -> list[Any]:
        """Return this process's rows of the next generation batch. Every process must call it."""
        if self._prompts is None:
            skips = None if self.ledger is None or self.ledger.selection is None else self.ledger.skips
            rows, sampler = self._prompt_rows, self._get_train_sampler(self._prompt_rows)
            self._prompts = PromptSource(rows, sampler, self.num_generations, skips)
            if (stream := RunState.of(self).prompts["stream"]) is not None:
                self._prompts.stream.load_state(stream)
        if self._sampling is not None:
            return self._sampling.fill(self._prompts, batch, num_rows)
        return self._prompts.draw_rows(num_rows)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        if self.ledger is not None and self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
            RunState.of(self).cycle_start = RunState.of(self).prompts
        return loss


class _Sampled(Exception):
    """Leaves TRL's method where it has generated."""


def _own_config(model: Any, args: Any) -> MinerGRPOConfig:
    if args is None:
        name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", None)
        return MinerGRPOConfig(f"{str(name or 'model').rstrip('/').split('/')[-1]}-{MinerGRPOTrainer._name}")
    return MinerGRPOConfig.from_grpo_config(args)
