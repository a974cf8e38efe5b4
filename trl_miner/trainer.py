"""`MinerGRPOTrainer`: TRL's `GRPOTrainer` with another advantage. The only file that touches TRL's private methods;
`tests/test_trl_contract.py` watches each of them.

# N rollouts of the global generation batch, B of this process, K of those that a forward is spent on
# F reward functions, T padded completion tokens; P prompts of a round of dynamic sampling
"""

import inspect
import logging
import math
import textwrap
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from datasets import IterableDataset
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import rotate_checkpoints
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import RepeatSampler, split_pixel_values_by_grid, unsplit_pixel_values_by_grid

from . import checkpoints
from .advantages import SCORED_BY, Estimate, Rollouts, estimate
from .config import MinerGRPOConfig
from .distributed import current_world
from .groups import GroupKinds, group_kinds
from .hub.training import open_repo, push_checkpoint, push_trained
from .logits import STATISTICS, check_logits, watch_logits
from .model_card import describe_run
from .run_state import RunState
from .sampling import BatchFill, Filled, GeneratedRound, PromptStream, assemble, differs_in_correctness
from .token_losses import POLICY_LOSSES, Surrogate
from .watchdog import GENERATION, RunStopped, Watchdog

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
# What TRL's forward takes besides tokens. (Its signature does not say in every version: 1.14 has **kwargs.)
_MULTIMODAL_KEYS = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)
_NOT_FORWARDED = {"prompt", "completion", "completion_ids"}  # columns that TRL keeps to itself
_STEP = "training step"
# Where in the tuple of TRL's `_generate` these stand.
_COMPLETION_IDS, _COMPLETIONS, _EXTRA_FIELDS = 1, 3, 5


class MinerGRPOTrainer(GRPOTrainer):
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
        self._wanted: set[str] = set()  # what the next no-grad forward is to find out besides log-probs
        self._captured: dict[str, Tensor] = {}  # and what it found, (rows, T) each
        self._scores: dict[str, tuple[Tensor, Tensor]] = {}  # (B, T) values of this batch, (N,) rows where they hold
        self._loss_inputs: dict[str, Any] | None = None
        self.epsilon_low: float
        self.epsilon_high: float
        self._bounds: Surrogate | None = None  # BAPO's, for the optimiser batch under way
        self._generated: GeneratedRound | None = None  # what dynamic sampling has already done of TRL's next batch
        self._stream: PromptStream | None = None
        self._is_saving = False
        self._resumed_from: Path | None = None  # until the rollouts in it are taken up
        self.add_callback(RunState())
        self._watchdog = self._make_watchdog()
        self.correct_index = self._find_correct_reward_func()
        self._check_reward_columns()
        if "ucas" in self._estimator:
            check_logits(self.model)
        if args.policy_loss != "clip":
            self._check_policy_loss()
        if args.dynamic_sampling:
            self._check_dynamic_sampling()

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
        with self.watching(GENERATION):
            return super()._generate(prompts)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        if self._generated is not None:
            self._rewards_NF = self._generated.rewards_NF
        else:
            with self._watchdog.part("rewards"):
                self._rewards_NF = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._rewards_NF

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        num_generated = len(inputs) * current_world().size
        if self.args.dynamic_sampling:
            self._generated, num_generated = self._draw_mixed_prompts(len(inputs))
            inputs = self._generated.rows
        # What an estimator asks of every row comes for next to nothing with TRL's own forward, where TRL makes one.
        self._wanted = set().union(*(SCORED_BY.get(name, ()) for name in self._estimator))
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            self._generated, self._wanted = None, set()
        captured, self._captured = self._captured, {}
        if "old_per_token_logps" in output:  # else what was captured is of the reference model
            captured = {"old_logps": output["old_per_token_logps"], **captured}
            everywhere_N = output["advantages"].new_ones(current_world().size * len(output["advantages"])).bool()
            self._scores = {name: (value, everywhere_N) for name, value in captured.items()}
        self._run_state.generated += num_generated
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
        mask_BT = _loss_mask(output)
        score = partial(self._score, output, mask_BT)
        rollouts = Rollouts(rewards_N, advantages_N, mask_BT, kinds, self.num_generations, score, world)
        found = estimate(self._estimator, rollouts, self.args.knobs)
        self._log_estimate(kinds, advantages_N, found, time.perf_counter() - start)
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

    def _forward_rows(self, output: dict[str, Any], is_row_N: Tensor, names: Collection[str]) -> dict[str, Tensor]:
        """One forward over some rows of this process, in chunks of the training batch: (B, T) each, 0 on other rows.
        The log-probs come with it, asked for or not."""
        num_rows, num_tokens = output["completion_ids"].shape
        chunk_size = self.args.per_device_train_batch_size
        rows_K = is_row_N[current_world().local_slice(num_rows)].nonzero().squeeze(1)
        # ZeRO-3 and FSDP hang unless every process does as many forwards as the one with the most of such rows.
        num_chunks = -(-int(is_row_N.view(-1, num_rows).sum(dim=1).max()) // chunk_size)
        num_dummies = max(0, (num_chunks - 1) * chunk_size + 1 - len(rows_K))
        batch = _select_rows(output, torch.cat([rows_K, rows_K.new_zeros(num_dummies)]))
        self._wanted = set(names) - {"old_logps"}
        logps_KT = self._forward(batch, chunk_size)
        captured, self._captured = {"old_logps": logps_KT, **self._captured}, {}
        values = {name: value.new_zeros(num_rows, num_tokens) for name, value in captured.items()}
        for name, value in captured.items():
            values[name][rows_K] = value[: len(rows_K)]
        return values

    @torch.no_grad()
    def _forward(self, batch: dict[str, Any], batch_size: int | None = None) -> Tensor:
        """Log-probs of the completion tokens under the policy as it is."""
        with disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            logps_BT, *_ = self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                batch["completion_ids"].shape[1],
                batch_size=batch_size,
                **{name: batch[name] for name in _MULTIMODAL_KEYS if name in batch},
            )
        return logps_BT

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        # Of the first forward alone, and of this model: others are the reference's, which has no entropies to give.
        wanted, self._wanted = self._wanted if model is self.model else set(), set()
        if "entropies" in wanted:
            kwargs["compute_entropy"] = True
        watch: Any = nullcontext({})
        if not wanted.isdisjoint(STATISTICS):
            completions = input_ids[:, -logits_to_keep:], attention_mask[:, -logits_to_keep:]
            watch = self._watch_logits(*completions, batch_size or len(input_ids))
        with watch as statistics:
            found = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs
            )
        if wanted:
            self._captured = {**statistics, **({"entropies": found[1]} if "entropies" in wanted else {})}
        if self._loss_inputs is not None:
            self._rewrite_loss_inputs(found[0])
        return found

    def _watch_logits(self, token_ids_BT: Tensor, mask_BT: Tensor, batch_size: int) -> Any:
        length = torch.tensor([token_ids_BT.shape[1]], device=token_ids_BT.device)
        rows = batch_size * int(current_world().gather(length).max())  # as many calls of the head on every process
        return watch_logits(
            self.accelerator.unwrap_model(self.model),
            token_ids_BT,
            mask_BT,
            temperature=self.temperature,
            elements=rows * self.model.config.get_text_config().vocab_size,
        )

    # Inside the loss: `policy_loss`.

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.args.policy_loss == "clip" or not self.model.training:
            return super()._compute_loss(model, inputs)
        if self.args.policy_loss == "bapo" and self.current_gradient_accumulation_steps > 1:
            self._search_bounds()
        # TRL looks for advantages, old log-probs and bounds after its forward, which `_rewrite_loss_inputs` follows.
        self._loss_inputs = dict(inputs)
        bounds = self.epsilon_low, self.epsilon_high
        try:
            return super()._compute_loss(model, self._loss_inputs)
        finally:
            self._loss_inputs = None
            self.epsilon_low, self.epsilon_high = bounds

    def _rewrite_loss_inputs(self, logps_BT: Tensor) -> None:
        """Between TRL's forward and TRL's loss: the advantages and bounds that `policy_loss` wants it to see."""
        inputs = self._loss_inputs
        assert inputs is not None
        found = self._bounds if self._bounds is not None else self._surrogate(logps_BT, inputs)
        if self._bounds is None:
            inputs["advantages"] = found.advantages_BT
            self._log_surrogate(found)
        if found.clip_low is not None and found.clip_high is not None:
            self.epsilon_low, self.epsilon_high = 1 - found.clip_low, found.clip_high - 1

    def _surrogate(self, logps_BT: Tensor, inputs: dict[str, Any]) -> Surrogate:
        mask_BT = _loss_mask(inputs)
        advantages = inputs["advantages"]
        old_logps_BT = inputs.get("old_per_token_logps")
        method = POLICY_LOSSES[self.args.policy_loss]
        assert method is not None
        return method(
            logps_BT,
            logps_BT.detach() if old_logps_BT is None else old_logps_BT,
            advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand(mask_BT.shape),
            mask_BT,
            world=current_world(),
            **self._loss_context(),
            **self.args.knobs(self.args.policy_loss),
        )

    def _loss_context(self) -> dict[str, Any]:
        if self.args.policy_loss != "clip_cov":
            return {}
        # From the place in the run, so that a resumed one draws the same tokens; the same on every process.
        micro_step = self._step % self.current_gradient_accumulation_steps
        generator = torch.Generator()
        generator.manual_seed(((self.args.seed * 2**32 + self.state.global_step) * 2**10 + micro_step) % 2**63)
        return {"generator": generator, "epsilon_low": self.epsilon_low, "epsilon_high": self.epsilon_high}

    def _search_bounds(self) -> None:
        """BAPO's bounds for all micro-batches of this optimiser step, at its first: one forward over each of them."""
        if self._step % self.current_gradient_accumulation_steps:
            return
        first = self._step % self.args.steps_per_generation
        batches = self._buffered_inputs[first : first + self.current_gradient_accumulation_steps]
        names = ("completion_mask", "tool_mask", "advantages", "old_per_token_logps")
        inputs = {name: torch.cat([batch[name] for batch in batches]) for name in names if name in batches[0]}
        self._bounds = self._surrogate(torch.cat([self._forward(batch) for batch in batches]), inputs)
        self._log_surrogate(self._bounds)

    def _log_surrogate(self, found: Surrogate) -> None:
        for name, value in found.metrics.items():
            self._metrics["train"][name].append(value)

    # Which prompts: `dynamic_sampling`.

    @property
    def _run_state(self) -> RunState:
        """Looked up each time: transformers may put another in its place when it resumes."""
        return next(c for c in self.callback_handler.callbacks if isinstance(c, RunState))

    def get_train_dataloader(self) -> Any:
        dataloader = super().get_train_dataloader()
        self._prompt_rows = dataloader.dataset
        return dataloader

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        with self._watchdog.part(_STEP):
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
        with self.watching(GENERATION):
            generated = super()._generate(prompts)
        for i, row in enumerate(rows):  # as TRL hands what a rollout_func found to the reward functions
            for name, values in (generated[_EXTRA_FIELDS] or {}).items():
                row[name] = values[i] if isinstance(values, list) else values
        with self._watchdog.part("rewards"):
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

    # Going on after a stop, and stopping when nothing gets on.

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; `resume_from_checkpoint` may also be "latest": the newest whole checkpoint, or none.

        Raises:
            RunStopped: Nothing has moved for `watchdog_seconds`. (With several processes they end at once, with exit
                code 75, since a collective cannot be left by an exception.)
        """
        if self.accelerator.is_local_main_process:
            checkpoints.recover(self.args.output_dir)
        self.accelerator.wait_for_everyone()
        checkpoint = checkpoints.agree_on(resume_from_checkpoint, self.args.output_dir)
        self._resumed_from = None if checkpoint is None else Path(checkpoint)
        try:
            return super().train(checkpoint, *args, **kwargs)
        except KeyboardInterrupt:
            if self._watchdog.message is None:
                raise
            raise RunStopped(self._watchdog.message) from None
        finally:
            self._watchdog.stop()

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if self._resumed_from is not None and self.model.training:
            folder, self._resumed_from = self._resumed_from, None
            place = self.accelerator.process_index, self.accelerator.num_processes
            found = checkpoints.load_rollouts(folder, *place, self.accelerator.device)
            if found is not None:
                self._step, self._buffered_inputs = found["micro_step"], found["batches"]
                self._run_state.stream = found["stream"]
        return super()._prepare_inputs(generation_batch)

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder, checkpoints.UNFINISHED)) if self._is_saving else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """TRL's checkpoint, and the rollouts that it lies in the middle of, whole or not there at all."""
        output, name = Path(self._get_output_dir(trial)), f"checkpoint-{self.state.global_step}"
        is_local_main = self.accelerator.is_local_main_process
        with self._watchdog.part("checkpoint", growing=output / checkpoints.UNFINISHED):
            try:
                if is_local_main:
                    checkpoints.begin(output)
                self.accelerator.wait_for_everyone()
                self._is_saving = True
                super()._save_checkpoint(model, trial)
                self._save_rollouts(output / checkpoints.UNFINISHED / name)
                if self.state.best_global_step and self.args.should_save:
                    self._name_best_checkpoint(output, name)
            except Exception as error:
                if is_local_main:
                    checkpoints.discard(output)
                last = checkpoints.newest(output)
                raise RuntimeError(
                    f"{name} could not be written in {output}: {error}. The run can go on from "
                    f"{last.name if last else 'the start: there is no other checkpoint'}."
                ) from error
            finally:
                self._is_saving = False
            self._finish_checkpoint(output, name)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(output / name))

    def _finish_checkpoint(self, output: Path, name: str) -> None:
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            checkpoints.finish(output, name)
            rotate_checkpoints(
                output_dir=str(output),
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )
        self.accelerator.wait_for_everyone()
        # A node with a disk of its own still has its part of it.
        if self.accelerator.is_local_main_process and (output / checkpoints.UNFINISHED / name).exists():
            checkpoints.finish(output, name)
        self.accelerator.wait_for_everyone()

    def _name_best_checkpoint(self, output: Path, name: str) -> None:
        """transformers looked for it where the checkpoint is being written."""
        best = output / f"checkpoint-{self.state.best_global_step}"
        if best.name == name or best.exists():
            self.state.best_model_checkpoint = str(best)
            self.state.save_to_json(str(output / checkpoints.UNFINISHED / name / "trainer_state.json"))

    def _save_rollouts(self, folder: Path) -> None:
        if self._step % (self.args.steps_per_generation * self.num_iterations) and self._buffered_inputs is not None:
            place = self.accelerator.process_index, self.accelerator.num_processes
            stream = None if self._stream is None else self._stream.state()
            checkpoints.save_rollouts(folder, *place, self._buffered_inputs, micro_step=self._step, stream=stream)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        open_repo(self, partial(super().init_hf_repo, token, private))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self._is_saving:  # once the checkpoint is in its place
            push_checkpoint(self, checkpoint_folder)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> bool:
        """Push the model, and say whether it arrived: see `trl_miner.hub.training.push_trained`."""
        return push_trained(self, *args, **kwargs)

    def _make_watchdog(self) -> Watchdog:
        args, url = self.args, None
        if args.use_vllm and args.vllm_mode == "server" and self.accelerator.is_main_process:
            url = args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
        watchdog = Watchdog(args.watchdog_seconds, server_url=url and url.rstrip("/"), where=self._place_in_run)
        if args.watchdog_seconds > 0:
            self.add_callback(_StartWatchdog(self, watchdog))
        engine = getattr(getattr(getattr(self, "vllm_generation", None), "llm", None), "llm_engine", None)
        if engine is not None:  # colocated: each of its steps is a sign of life
            engine.step = _with_beat(engine.step, watchdog)
        return watchdog

    def _place_in_run(self) -> str:
        step = self.state.global_step
        return f"step {step + 1}" if self._watchdog.is_in(_STEP) else f"after step {step}"

    @contextmanager
    def watching(self, part: str) -> Iterator[None]:
        """Name what happens meanwhile to the watchdog, each forward of the model being a sign of life."""
        embeddings = self.accelerator.unwrap_model(self.model).get_input_embeddings()
        hook = embeddings.register_forward_pre_hook(lambda *_: self._watchdog.beat())
        try:
            with self._watchdog.part(part):
                yield
        finally:
            hook.remove()

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
        for name, value in found.metrics.items():
            metrics[name].append(value)
        if self._estimator != ("grpo",):
            metrics[f"{self._estimator[-1]}/seconds"].append(seconds)

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


class _StartWatchdog(TrainerCallback):
    """Begins when the training does: loading a model or a checkpoint may take its time."""

    def __init__(self, trainer: MinerGRPOTrainer, watchdog: Watchdog) -> None:
        self.trainer, self.watchdog = trainer, watchdog

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        accelerator = self.trainer.accelerator
        self.watchdog.start(accelerator.process_index, accelerator.num_processes, _from_main_process)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.watchdog.stop()


def _from_main_process(value: int) -> int:
    values = [value]
    broadcast_object_list(values)
    return values[0]


def _with_beat(step: Callable[..., Any], watchdog: Watchdog) -> Callable[..., Any]:
    def beating(*args: Any, **kwargs: Any) -> Any:
        watchdog.beat()
        return step(*args, **kwargs)

    return beating


def _select_rows(batch: dict[str, Any], rows_K: Tensor) -> dict[str, Any]:
    """The rows of a batch as TRL returns it; images are stored apart from rows, so TRL's own helpers cut them."""
    batch = split_pixel_values_by_grid(batch)
    selected: dict[str, Any] = {}
    for name, value in batch.items():
        if isinstance(value, list):
            selected[name] = [value[row] for row in rows_K.tolist()]
        elif isinstance(value, Tensor) and value.dim() > 0:
            selected[name] = value[rows_K]
        else:
            selected[name] = value
    return unsplit_pixel_values_by_grid(selected)


def _loss_mask(batch: dict[str, Any]) -> Tensor:
    """The tokens that count: of the completion, and not a tool's."""
    mask_BT = batch["completion_mask"]
    return mask_BT * batch["tool_mask"] if "tool_mask" in batch else mask_BT


def _required_parameters(function: Callable[..., Any]) -> set[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable that has no signature to read
        return set()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.kind in named and p.default is inspect.Parameter.empty}
