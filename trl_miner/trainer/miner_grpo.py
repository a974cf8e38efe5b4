"""`MinerGRPOTrainer`: the advantages of a generation batch, and which prompts it is of.

# N rollouts of the global generation batch, B of this process, F reward functions, T padded completion tokens
"""

import inspect
import logging
import math
import textwrap
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import IterableDataset
from torch import Tensor
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from ..config import MinerGRPOConfig
from ..distributed import current_world
from ..hub.model_card import describe_run
from ..launching.watchdog import GENERATION
from ..methods import Estimate, Rollouts
from ..methods.compose import estimate
from ..methods.groups import GroupKinds, group_kinds
from ..runs.token_credit import write_credit
from .dynamic_sampling import BatchFill, Filled, GeneratedRound, PromptStream, assemble, differs_in_correctness
from .logits import check_logits
from .micro_batches import loss_mask
from .sampled_logps import by_row, changes_to_logits, collect_logps
from .token_credit import choose_rollouts, credit_table, local_rollouts
from .trackers import CreditPageCallback
from .update import KINDS, MeasuringTrainer
from .update_metrics import row_kinds

logger = logging.getLogger(__name__)

# What TRL hands to every reward function besides the columns of the data set.
_REWARD_KWARGS = {
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
    "environments",
}
_NOT_FORWARDED = {"prompt", "completion", "completion_ids"}  # columns that TRL keeps to itself
# Where in the tuple of TRL's `_generate` these stand.
_COMPLETION_IDS, _COMPLETIONS, _EXTRA_FIELDS = 1, 3, 5


class MinerGRPOTrainer(MeasuringTrainer):
    """
    Drop-in for [`~trl.GRPOTrainer`] that also learns from prompts whose rollouts are all right
    (https://huggingface.co/papers/2601.04731), and trains the methods that this is compared with.

    Takes the arguments of [`~trl.GRPOTrainer`], with a [`MinerGRPOConfig`] as `args` (a plain `GRPOConfig` gets
    MINER's defaults). Generation, rewards, loss and evaluation are TRL's own; what changes are the advantages of a
    training batch, which become (B, T) where an all-right prompt has something to teach, and stay TRL's (B,) where
    not. `policy_loss` and `dynamic_sampling` change more, and are off by default. Evaluation is always plain GRPO.

    Which rollout is correct is decided by the first reward function (`correct_reward_func` names another) at
    `correct_threshold`. The log-probs under the old policy are those that TRL computed, else those of the sampler (a
    `rollout_func`, or vLLM without importance-sampling correction), else one forward over the PH rows alone.

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

    def __init__(self, model: Any, reward_funcs: Any = None, args: Any = None, *rest: Any, **kwargs: Any) -> None:
        args = self._own_config(model, args)
        super().__init__(model, reward_funcs, args, *rest, **kwargs)
        self.evaluation: dict[str, dict[str, float]] = {}  # {"before": {"pass@1": ...}, ...}, shown on the model card
        self._estimator = tuple(args.advantage_estimator.split("+"))
        if "miner" not in self._estimator:  # the model card must not credit it
            self._name, self._paper, self._tag_names = GRPOTrainer._name, GRPOTrainer._paper, GRPOTrainer._tag_names
        self._rewards_NF: Tensor | None = None
        self._scores: dict[str, tuple[Tensor, Tensor]] = {}  # (B, T) values of this batch, (N,) rows where they hold
        self._new_tokens = 0  # of the completions that this process has generated for the batch under way
        self._generated: GeneratedRound | None = None  # what dynamic sampling has already done of TRL's next batch
        self.correct_index = self._find_correct_reward_func()
        self._check_reward_columns()
        self._collects_logps = self._may_collect_logps()
        if "ucas" in self._estimator:
            check_logits(self.model)
        if args.policy_loss != "clip":
            self._check_policy_loss()
        if args.dynamic_sampling:
            self._check_dynamic_sampling()
        if args.log_token_credit:  # before the trackers' own, which close them at the end
            self.callback_handler.callbacks.insert(0, CreditPageCallback(self))

    def _check_policy_loss(self) -> None:
        if getattr(self, "use_liger_kernel", False):  # until TRL 1.13, another loss than `_compute_loss`
            raise ValueError(
                f"policy_loss={self.args.policy_loss} does not reach Liger's loss: got use_liger_kernel=True with TRL "
                f"below 1.14. Leave use_liger_kernel out, or upgrade TRL."
            )

    def _check_dynamic_sampling(self) -> None:
        """What dynamic sampling cannot do must show now, not when the first batch is short."""
        if isinstance(self.train_dataset, IterableDataset):
            raise ValueError(
                "dynamic_sampling draws prompts by their index: got a streaming training set. Load it without "
                "streaming, or leave dynamic_sampling out."
            )
        images = {"image", "images"} & set(getattr(self.train_dataset, "column_names", ()))
        if self.tools or getattr(self, "environment_factories", None) or images:
            raise ValueError("dynamic_sampling works on prompts of text alone: got tools, environments or images.")
        num_prompts, batch = len(self.train_dataset), self.args.generation_batch_size // self.num_generations
        if num_prompts < 2 * batch:
            raise ValueError(
                f"dynamic_sampling needs a training set to refill from, of at least two batches: got {num_prompts} "
                f"prompts for batches of {batch}. Use more prompts, or a smaller batch."
            )

    @staticmethod
    def _own_config(model: Any, args: Any) -> MinerGRPOConfig:
        if args is None:
            name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", None)
            return MinerGRPOConfig(f"{str(name or 'model').rstrip('/').split('/')[-1]}-MINER")
        return MinerGRPOConfig.from_grpo_config(args)

    def _find_correct_reward_func(self) -> int:
        wanted = self.args.correct_reward_func
        if wanted is None:
            return 0
        if wanted not in self.reward_func_names:
            raise ValueError(
                f"correct_reward_func must name one of the reward functions: got {wanted!r}, there are "
                f"{', '.join(self.reward_func_names)}."
            )
        return self.reward_func_names.index(wanted)

    def _check_reward_columns(self) -> None:
        """A missing column would show as a TypeError after the first generation, which can be an hour into a job."""
        columns = getattr(self.train_dataset, "column_names", None)
        if columns is None or self.rollout_func is not None:  # a stream's columns are unknown; a rollout adds its own
            return
        for name, function in zip(self.reward_func_names, self.reward_funcs, strict=True):
            if isinstance(function, torch.nn.Module):
                continue
            missing = _required_parameters(function) - _REWARD_KWARGS - (set(columns) - _NOT_FORWARDED)
            if missing:
                raise ValueError(
                    f"The reward function '{name}' needs the column(s) {', '.join(sorted(missing))}, which the "
                    f"training set does not have: its columns are {', '.join(columns)}. Rename or add a column."
                )

    # The advantages of a generation batch.

    def _generate(self, prompts: Any) -> tuple[Any, ...]:
        if self._generated is not None:
            return self._generated.generated
        return self._generate_anew(prompts)

    def _generate_anew(self, prompts: list[Any]) -> tuple[Any, ...]:
        """What TRL generates, watched, and its completion tokens counted."""
        with self.watching(GENERATION):
            generated: tuple[Any, ...] = super()._generate(prompts)
        self._new_tokens += sum(map(len, generated[_COMPLETION_IDS]))
        return generated

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if not (self._collects_logps and self.model.training):
            return super()._generate_single_turn(*args, **kwargs)
        with collect_logps(self.accelerator.unwrap_model(self.model_wrapped), self.temperature) as found:
            completion_ids, _ = super()._generate_single_turn(*args, **kwargs)
        return completion_ids, by_row(found, completion_ids)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        if self._generated is not None:
            self._rewards_NF = self._generated.rewards_NF
        else:
            with self._watchdog.phase("rewards"):
                self._rewards_NF = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._rewards_NF

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        num_generated = len(inputs) * current_world().size
        self._new_tokens = 0
        if self.args.dynamic_sampling:
            self._generated, num_generated = self._draw_mixed_prompts(len(inputs))
            inputs = self._generated.rows
        # What an estimator asks of every row comes for next to nothing with TRL's own forward, where TRL makes one.
        self._wanted = set().union(*(method.scores for method in self.args.estimators))
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            self._generated, self._wanted = None, set()
        captured, self._captured = self._captured, {}
        if self._collects_logps and "sampling_per_token_logps" in output:  # ours, which TRL's loss knows nothing of
            captured = {"old_logps": output.pop("sampling_per_token_logps")}
        elif "old_per_token_logps" in output:
            captured["old_logps"] = output["old_per_token_logps"]
        else:  # what was captured is of the reference model
            captured = {}
        everywhere_N = output["advantages"].new_ones(current_world().size * len(output["advantages"])).bool()
        self._scores = {name: (value, everywhere_N) for name, value in captured.items()}
        self._check_budget(output)
        self._run_state.generated += num_generated
        new_tokens = torch.tensor(self._new_tokens, device=self.accelerator.device)
        self._run_state.tokens += int(current_world().sum(new_tokens))
        try:
            return self._estimate_advantages(output)
        finally:
            self._scores = {}

    def _estimate_advantages(self, output: dict[str, Any]) -> dict[str, Any]:
        """TRL's batch with the advantages of the chosen estimator, in a new dict."""
        start = time.perf_counter()
        world = current_world()
        rewards_NF, self._rewards_NF = self._rewards_NF, None
        assert rewards_NF is not None, "TRL scores a batch before it returns it"
        rewards_N = self._total_rewards(rewards_NF)
        advantages_N = world.gather(output["advantages"])
        kinds = group_kinds(
            rewards_N,
            self.num_generations,
            correct_threshold=self.args.correct_threshold,
            verifier_rewards_N=rewards_NF[:, self.correct_index],
            advantages_N=advantages_N,
        )
        if self.args.log_miner_update:
            output = {**output, KINDS: row_kinds(kinds)[world.local_slice(len(output["advantages"]))]}
        mask_BT = loss_mask(output)
        score = partial(self._score, output, mask_BT)
        rollouts = Rollouts(rewards_N, advantages_N, mask_BT, kinds, self.num_generations, score, world)
        found = estimate(self.args.estimators, rollouts, self.args.knobs)
        self._log_estimate(kinds, advantages_N, found, time.perf_counter() - start)
        if (step := self._credit_step()) is not None:
            self._record_credit(step, output, rollouts, rewards_NF[:, self.correct_index], found)
        if found.advantages is None:
            return output  # TRL's own (B,): bit for bit GRPO, metrics included
        self._replace_logged_advantages(found.advantages_N)
        advantages = found.advantages
        if advantages.dim() == 2:
            # At padding TRL's own number: TRL 1.9 averages "luspo" over it, and so must find what it would have there.
            advantages = torch.where(mask_BT.bool(), advantages, output["advantages"].unsqueeze(1))
        return {**output, "advantages": advantages}

    def _total_rewards(self, rewards_NF: Tensor) -> Tensor:
        rewards_N = (rewards_NF * self.reward_weights.to(rewards_NF)).nansum(dim=1)
        rewards_N[rewards_NF.isnan().all(dim=1)] = torch.nan  # unscorable, as TRL defines it
        return rewards_N

    def _score(
        self, output: dict[str, Any], mask_BT: Tensor, names: Collection[str], is_row_N: Tensor
    ) -> dict[str, Tensor]:
        """`Rollouts.score`: from TRL's forward, else the sampler's log-probs, else a forward over those rows alone.
        The same source on every process, since it follows from the configuration and from global rows."""
        missing = {
            name for name in names if name not in self._scores or bool((is_row_N & ~self._scores[name][1]).any())
        }
        if "old_logps" in missing and "sampling_per_token_logps" in output:
            missing.remove("old_logps")
            logps_BT, mask_BT = self._sampler_logps(output["sampling_per_token_logps"], mask_BT, is_row_N)
            self._scores["old_logps"] = (logps_BT, torch.ones_like(is_row_N))
        if missing:
            for name, value in self._forward_rows(output, is_row_N, missing).items():
                self._scores[name] = (value, is_row_N)
        return {"mask": mask_BT, **{name: self._scores[name][0] for name in names}}

    def _sampler_logps(self, logps_BT: Tensor, mask_BT: Tensor, is_row_N: Tensor) -> tuple[Tensor, Tensor]:
        """The sampler's log-probs, and the mask of the tokens that have one: vLLM gives NaN where it could not say."""
        is_unknown_BT = mask_BT.bool() & ~logps_BT.isfinite()
        num_unknown = current_world().sum(is_unknown_BT.sum()).item()
        self._metrics["train"]["miner/unscored_tokens"].append(float(num_unknown))
        is_row_B = is_row_N[current_world().local_slice(mask_BT.shape[0])]
        return logps_BT, mask_BT * ~(is_unknown_BT & is_row_B.unsqueeze(1))

    def _may_collect_logps(self) -> bool:
        """Whether the log-probs found while sampling are those that a forward would give."""
        args = self.args
        is_aligned = args.gradient_accumulation_steps % (args.steps_per_generation * self.num_iterations) == 0
        if not args.reuse_sampling_logps or "miner" not in self._estimator or not is_aligned:
            return False
        if self.use_vllm or self.rollout_func is not None:  # theirs are used where they come with the rollouts
            return False
        dtypes = {parameter.dtype for parameter in self.model.parameters()}
        changes = changes_to_logits(self.accelerator.unwrap_model(self.model).generation_config)
        changes += ["generation_kwargs"] if args.generation_kwargs else []
        changes += ["repetition_penalty"] if args.repetition_penalty != 1.0 else []
        reason = None
        if getattr(self, "use_transformers_continuous_batching", False):
            reason = "continuous batching does not say them"
        elif self.tools or getattr(self, "environment_factories", None):
            reason = "rollouts with tools are sampled in turns"
        elif not dtypes <= {torch.float32, torch.float64} or self.accelerator.mixed_precision != "no":
            reason = "below float32 the sampler's differ from those of a forward"
        elif changes:
            reason = f"the sampler's logits may be changed by {', '.join(changes)}"
        if reason:
            logger.warning(f"reuse_sampling_logps: MINER makes its forward over all-right rows, because {reason}.")
        return reason is None

    # What each token was paid: `log_token_credit`.

    def _credit_step(self) -> int | None:
        """The step to record this generation batch under: one that it trains and the records are wanted of."""
        args = self.args
        cycle = args.steps_per_generation * self.num_iterations
        is_first = self._step % max(cycle, args.gradient_accumulation_steps) == 0  # of several for one step
        if not args.log_token_credit or not is_first:
            return None
        every, done = args.log_token_credit_steps, self.state.global_step
        step = (done // every + 1) * every
        last = min(done + max(1, cycle // args.gradient_accumulation_steps), self.state.max_steps)
        return step if step <= last else None

    def _record_credit(
        self, step: int, output: dict[str, Any], rollouts: Rollouts, verifier_rewards_N: Tensor, found: Estimate
    ) -> None:
        """Every process calls: a forward where log-probs are not there, and an exchange of the chosen rollouts."""
        is_chosen_N = choose_rollouts(rollouts.kinds, self.num_generations, self.args.log_token_credit_rollouts)
        device = self.accelerator.device
        # With dropout a forward draws numbers, and recording must not change what is trained.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            scores = rollouts.score(("old_logps",), is_chosen_N)
        old_logps_BT = scores["old_logps"].masked_fill(~scores["mask"].bool(), torch.nan)
        advantages = output["advantages"] if found.advantages is None else found.advantages
        if advantages.dim() == 1:
            advantages = advantages.unsqueeze(1).expand(rollouts.mask_BT.shape)
        rows = rollouts.local(is_chosen_N).nonzero().squeeze(1)
        first_row = rollouts.world.local_slice(len(rollouts.mask_BT)).start
        chosen = gather_object(local_rollouts(output, rollouts.mask_BT, old_logps_BT, advantages, rows, first_row))
        if not self.is_world_process_zero():
            return
        is_miner = "miner" in self._estimator
        knobs = self.args.knobs("miner") if is_miner else None
        table = credit_table(
            chosen,
            step=step,
            num_generations=self.num_generations,
            kinds=rollouts.kinds,
            rewards_N=rollouts.rewards_N,
            verifier_rewards_N=verifier_rewards_N,
            grpo_advantages_N=rollouts.advantages_N,
            knobs=knobs,
            tokenizer=self.processing_class,
        )
        about = {
            "step": step,
            "estimator": self.args.advantage_estimator,
            **({name: knobs[name] for name in ("credit", "gamma", "lambda_max")} if knobs else {}),
            **{name: found.metrics.get(f"miner/{name}") for name in ("scale", "tau_ref", "tau_pos")},
            "num_generations": self.num_generations,
            "rollouts_in_batch": len(is_chosen_N),
            "rollouts_logged": len(chosen),
        }
        write_credit(self.args.output_dir, table, about)

    # Which prompts: `dynamic_sampling`.

    def get_train_dataloader(self) -> Any:
        dataloader = super().get_train_dataloader()
        self._prompt_rows = dataloader.dataset
        return dataloader

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        # A checkpoint inside a generation cycle leads back to the cycle's own prompts, as it does in TRL.
        if self._stream is not None and self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
            self._run_state.stream = self._stream.state()
        return loss

    def _prompt_stream(self) -> PromptStream:
        state = self._run_state
        if self._stream is None or state.has_begun:
            sampler = self._get_train_sampler(self._prompt_rows)
            if not isinstance(sampler, RepeatSampler):
                raise ValueError(
                    f"dynamic_sampling needs TRL's RepeatSampler: got {type(sampler).__name__} from "
                    f"_get_train_sampler. Leave dynamic_sampling out, or order the training set beforehand."
                )
            # The same order, prompt by prompt, and to the last one.
            sampler.mini_repeat_count = sampler.batch_size = sampler.repeat_count = 1
            self._stream = PromptStream(sampler, len(self._prompt_rows))
            if state.stream is not None:
                self._stream.load_state(state.stream)
            state.has_begun = False
        return self._stream

    def _draw_mixed_prompts(self, num_rows: int) -> tuple[GeneratedRound, int]:
        """Generate and score until the batch is full of prompts that differ in correctness: the batch as far as it is
        done, and how many rollouts it took. All decisions are from gathered rewards, so every process makes the same
        ones and as many rounds."""
        world, stream = current_world(), self._prompt_stream()
        num_groups = num_rows * world.size // self.num_generations
        fill = BatchFill(
            stream,
            num_groups,
            multiple=world.size // math.gcd(world.size, self.num_generations),
            max_rounds=self.args.dynamic_sampling_max_rounds,
            oversample=self.args.dynamic_sampling_oversample,
        )
        rounds = []
        for indices in fill:
            rounds.append(self._generate_round(indices))
            rewards_NF = rounds[-1].rewards_NF
            kept = differs_in_correctness(
                rewards_NF[:, self.correct_index],
                self.num_generations,
                correct_threshold=self.args.correct_threshold,
            )
            spread = self._total_rewards(rewards_NF).view(-1, self.num_generations)
            fill.record(kept.tolist(), (spread.amax(dim=1) - spread.amin(dim=1)).nan_to_num(nan=0.0).tolist())
        filled = fill.finish()
        self._log_sampling(filled, num_groups, stream.epoch)
        # TRL gathers prompts and completions as objects as well, to log them; this is of that size.
        batch = assemble(rounds, filled, self.num_generations, world, gather_object)
        self._pending_extra_logs.update(batch.extra)
        return batch, filled.num_generated * self.num_generations

    def _generate_round(self, indices: list[int]) -> GeneratedRound:
        repeated = [index for index in indices for _ in range(self.num_generations)]
        mine = repeated[current_world().local_slice(len(repeated) // current_world().size)]
        rows = self.data_collator([self._prompt_rows[index] for index in mine])
        prompts = [row["prompt"] for row in rows]
        generated = self._generate_anew(prompts)
        for i, row in enumerate(rows):  # as TRL hands what a rollout_func found to the reward functions
            for name, values in (generated[_EXTRA_FIELDS] or {}).items():
                row[name] = values[i] if isinstance(values, list) else values
        with self._watchdog.phase("rewards"):
            rewards_NF = super()._calculate_rewards(rows, prompts, generated[_COMPLETIONS], generated[_COMPLETION_IDS])
        extra = {name: values for name, values in self._pending_extra_logs.items() if len(values) == len(rows)}
        self._pending_extra_logs.clear()
        return GeneratedRound(rows, generated, rewards_NF, extra)

    def _log_sampling(self, filled: Filled, num_groups: int, epoch: float) -> None:
        values = {
            "generated": filled.num_generated * self.num_generations,
            "kept": filled.num_kept * self.num_generations,
            "dropped": filled.num_dropped * self.num_generations,
            "rounds": filled.num_rounds,
            "full": filled.num_kept / num_groups,
            "epoch": epoch,
        }
        for name, value in values.items():
            self._metrics["train"][f"dynamic_sampling/{name}"].append(float(value))
        if filled.num_kept < num_groups:
            message = (
                f"Dynamic sampling found {filled.num_kept} mixed prompts for a batch of {num_groups}, in "
                f"{filled.num_rounds} rounds and {filled.num_generated} prompts. "
            )
            if self.args.dynamic_sampling_require_full:
                raise RuntimeError(
                    message + "dynamic_sampling_require_full forbids to fill it up. Use harder or easier prompts, or "
                    "raise dynamic_sampling_max_rounds."
                )
            if self.is_world_process_zero():
                logger.warning(message + "The rest of the batch is made up of prompts that do not differ.")

    # What the run says of itself.

    def _log_estimate(self, kinds: GroupKinds, advantages_N: Tensor, found: Estimate, seconds: float) -> None:
        metrics = self._metrics["train"]
        teaches_N = (advantages_N != 0) & kinds.is_he_N  # under GRPO
        used_N = (found.advantages_N != 0) & (teaches_N | (found.advantages_N != advantages_N))
        shares = torch.stack([*kinds, teaches_N, used_N & ~teaches_N, used_N]).float().mean(dim=1).tolist()
        names = ("groups/ph", "groups/he", "groups/nh", "rollouts/grpo", "rollouts/recovered", "rollouts/used")
        for name, share in zip(names, shares, strict=True):
            metrics[name].append(share)
        state = self._run_state
        state.used += int(used_N.sum())
        # Running totals: not appended, because TRL logs the mean of what it finds.
        metrics["rollouts/generated_total"] = [float(state.generated)]
        metrics["rollouts/used_total"] = [float(state.used)]
        metrics["rollouts/tokens_total"] = [float(state.tokens)]
        for name, value in found.metrics.items():
            metrics[name].append(value)
        if self._estimator != ("grpo",):
            metrics[f"{self.args.estimators[-1].metric_prefix}/seconds"].append(seconds)

    def _replace_logged_advantages(self, advantages_N: Tensor) -> None:
        """TRL has logged its own advantages by now; the completions table should show what the loss will use."""
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), len(advantages_N))):
            logged.pop()
        logged.extend(advantages_N.tolist())

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        super().create_model_card(*args, **kwargs)
        path = Path(self.args.output_dir) / "README.md"
        if self.is_world_process_zero() and path.is_file():
            path.write_text(
                describe_run(
                    path.read_text(encoding="utf-8"),
                    base_model=self.model.config._name_or_path,
                    args=self.args,
                    log_history=self.state.log_history,
                    evaluation=self.evaluation,
                ),
                encoding="utf-8",
            )


def _required_parameters(function: Callable[..., Any]) -> set[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable that has no signature to read
        return set()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.kind in named and p.default is inspect.Parameter.empty}
