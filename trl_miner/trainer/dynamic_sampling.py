"""Dynamic sampling in the trainer: generate and score prompts until a batch is full of those that differ in
correctness.

# N rollouts of the global batch, F reward functions, G = num_generations rollouts per prompt
"""

import logging
import math
from typing import Any

from datasets import IterableDataset
from trl.trainer.utils import RepeatSampler

from ..distributed import current_world
from ..methods.groups import differs_in_correctness
from .batch_fill import BatchFill, Filled, GeneratedRound, PromptStream, assemble
from .checkpointing import RunState
from .generation_batch import (
    COMPLETION_IDS,
    COMPLETIONS,
    EXTRA_FIELDS,
    SAMPLER_LOGPS,
    TOOL_MASK,
    GenerationBatch,
    total_rewards,
)

logger = logging.getLogger(__name__)


class DynamicSampling:
    """Draws the prompts of each generation batch itself, in the place of TRL's dataloader.

    Attributes:
        prompt_rows: The training set as TRL's dataloader reads it; set before the first batch.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._stream: PromptStream | None = None
        self.prompt_rows: Any = None
        self._check()

    def _check(self) -> None:
        """Refuse now what would only show when the first batch is short."""
        trainer = self._trainer
        if isinstance(trainer.train_dataset, IterableDataset):
            raise ValueError(
                "dynamic_sampling draws prompts by their index: got a streaming training set. Load it without "
                "streaming, or leave dynamic_sampling out."
            )
        images = {"image", "images"} & set(getattr(trainer.train_dataset, "column_names", ()))
        if trainer.tools or getattr(trainer, "environment_factories", None) or images:
            raise ValueError(
                "dynamic_sampling works on prompts of text alone: got tools, environments or images. Leave "
                "dynamic_sampling out."
            )
        num_prompts = len(trainer.train_dataset)
        num_groups = trainer.args.generation_batch_size // trainer.num_generations
        if num_prompts < 2 * num_groups:
            raise ValueError(
                f"dynamic_sampling needs a training set to refill from, of at least two batches: got {num_prompts} "
                f"prompts for batches of {num_groups}. Use more prompts, or a smaller batch."
            )

    def fill(self, batch: GenerationBatch, num_rows: int) -> list[Any]:
        """Generate and score until a generation batch is full. Every process must call it.

        All decisions follow from gathered rewards, so every process makes the same ones and equally many rounds.
        """
        trainer, world, stream = self._trainer, current_world(), self._current_stream()
        num_groups = num_rows * world.size // trainer.num_generations
        fill = BatchFill(
            stream,
            num_groups,
            multiple=world.size // math.gcd(world.size, trainer.num_generations),
            max_rounds=trainer.args.dynamic_sampling_max_rounds,
            oversample=trainer.args.dynamic_sampling_oversample,
        )
        rounds = []
        for indices in fill:
            rounds.append(self.generate_round(indices))
            rewards_NF = rounds[-1].rewards_NF
            kept = differs_in_correctness(
                trainer.verifier.rewards(rewards_NF),
                trainer.num_generations,
                correct_threshold=trainer.args.correct_threshold,
            )
            rewards_PG = total_rewards(rewards_NF, trainer.reward_weights).view(-1, trainer.num_generations)
            spread_P = (rewards_PG.amax(dim=1) - rewards_PG.amin(dim=1)).nan_to_num(nan=0.0)
            fill.record(kept.tolist(), spread_P.tolist())
        filled = fill.finish()
        batch.visits.dropped = filled.dropped
        self._log(filled, num_groups, stream.epoch)
        prepared = assemble(rounds, filled, trainer.num_generations, world)
        batch.prepared = prepared._replace(generated=without_gaps(prepared.generated))
        batch.num_generated = filled.num_generated * trainer.num_generations
        trainer._pending_extra_logs.update(batch.prepared.extra)
        return batch.prepared.rows

    def generate_round(self, indices: list[int]) -> GeneratedRound:
        """Generate and score the rollouts of some prompts, each process its share. Every process must call it."""
        trainer = self._trainer
        repeated = [index for index in indices for _ in range(trainer.num_generations)]
        mine = repeated[current_world().local_slice(len(repeated) // current_world().size)]
        rows = trainer.data_collator([self.prompt_rows[index] for index in mine])
        prompts = [row["prompt"] for row in rows]
        generated = trainer._generate(prompts)
        fields = generated[EXTRA_FIELDS] or {}  # TRL would write one round's into the rows of the batch
        generated = (*generated[:EXTRA_FIELDS], {}, *generated[EXTRA_FIELDS + 1 :])
        for i, row in enumerate(rows):  # as TRL hands what a rollout_func found to the reward functions
            row.update((name, values[i] if isinstance(values, list) else values) for name, values in fields.items())
        rewards_NF = trainer._calculate_rewards(rows, prompts, generated[COMPLETIONS], generated[COMPLETION_IDS])
        extra = {name: values for name, values in trainer._pending_extra_logs.items() if len(values) == len(rows)}
        trainer._pending_extra_logs.clear()
        return GeneratedRound(rows, generated, rewards_NF, extra)

    def stream_state(self) -> dict[str, Any] | None:
        """Return the position of the prompt stream; None: it has not started."""
        return None if self._stream is None else self._stream.state()

    def end_micro_step(self) -> None:
        """Keep the stream's position for a checkpoint where a generation cycle ends.

        A checkpoint inside a cycle leads back to the cycle's own prompts, as it does in TRL.
        """
        trainer = self._trainer
        cycle = trainer.args.steps_per_generation * trainer.num_iterations
        if self._stream is not None and trainer._step % cycle == 0:
            RunState.of(trainer).stream = self._stream.state()

    def _current_stream(self) -> PromptStream:
        """Return the prompt stream, at the position of the run's state when a training starts."""
        trainer, state = self._trainer, RunState.of(self._trainer)
        if self._stream is None or state.has_begun:
            sampler = trainer._get_train_sampler(self.prompt_rows)
            if not isinstance(sampler, RepeatSampler):
                raise ValueError(
                    f"dynamic_sampling needs TRL's RepeatSampler: got {type(sampler).__name__} from "
                    f"_get_train_sampler. Leave dynamic_sampling out, or order the training set beforehand."
                )
            # The same order, prompt by prompt, and to the last one.
            sampler.mini_repeat_count = sampler.batch_size = sampler.repeat_count = 1
            self._stream = PromptStream(sampler, len(self.prompt_rows))
            if state.stream is not None:
                self._stream.load_state(state.stream)
            state.has_begun = False
        return self._stream

    def _log(self, filled: Filled, num_groups: int, epoch: float) -> None:
        trainer = self._trainer
        values = {
            "generated": filled.num_generated * trainer.num_generations,
            "kept": filled.num_kept * trainer.num_generations,
            "dropped": len(filled.dropped) * trainer.num_generations,
            "rounds": filled.num_rounds,
            "full": filled.num_kept / num_groups,
            "epoch": epoch,
        }
        for name, value in values.items():
            trainer.log_train_metric(f"dynamic_sampling/{name}", float(value))
        if filled.num_kept == num_groups:
            return
        message = (
            f"Dynamic sampling found {filled.num_kept} mixed prompts for a batch of {num_groups}, in "
            f"{filled.num_rounds} rounds and {filled.num_generated} prompts. "
        )
        if trainer.args.dynamic_sampling_require_full:
            problem = trainer._watch.problem()
            raise RuntimeError(
                message + "dynamic_sampling_require_full does not allow filling it up. Use harder or easier prompts, "
                "or raise dynamic_sampling_max_rounds." + (f" Of the rewards so far: {problem}" if problem else "")
            )
        if trainer.is_world_process_zero():
            logger.warning(message + "The rest of the batch is made up of prompts that do not differ.")


def without_gaps(generated: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what `_generate` returned with masks and log-probs for all rows, where some rounds had none of them.

    Without a mask every token is the model's. An unknown log-prob is NaN.
    """
    parts = list(generated)
    for part, unknown in ((TOOL_MASK, 1), (SAMPLER_LOGPS, math.nan)):
        if parts[part] is not None:
            rows = zip(parts[part], parts[COMPLETION_IDS], strict=True)
            parts[part] = [[unknown] * len(ids) if values is None else values for values, ids in rows]
    return tuple(parts)
