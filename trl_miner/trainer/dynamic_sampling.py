"""Dynamic sampling in the trainer: generate and score prompts until a batch is full of those that differ in
correctness.

# N rollouts of the global batch, F reward functions, G = num_generations rollouts per prompt
"""

import logging
import math
from typing import Any

from ..distributed import current_world
from ..methods.groups import differs_in_correctness
from .batch_fill import BatchFill, Filled, GeneratedRound, assemble
from .generation_batch import (
    COMPLETION_IDS,
    COMPLETIONS,
    EXTRA_FIELDS,
    SAMPLER_LOGPS,
    TOOL_MASK,
    GenerationBatch,
    total_rewards,
)
from .prompt_source import PromptSource

logger = logging.getLogger(__name__)


class DynamicSampling:
    """Fills each generation batch with prompts of a source, in several rounds."""

    def __init__(self, trainer: Any, source: PromptSource) -> None:
        self._trainer, self._source = trainer, source
        images = {"image", "images"} & set(getattr(trainer.train_dataset, "column_names", ()))
        if trainer.tools or trainer.environment_factories or images:
            raise ValueError(
                "dynamic_sampling works on prompts of text alone: got tools, environments or images. Leave "
                "dynamic_sampling out."
            )

    def fill(self, batch: GenerationBatch, num_rows: int) -> list[Any]:
        """Generate and score until a generation batch is full. Every process must call it.

        All decisions follow from gathered rewards, so every process makes the same ones and equally many rounds.
        """
        trainer, world, stream = self._trainer, current_world(), self._source.stream()
        num_groups = num_rows * world.size // trainer.num_generations
        fill = BatchFill(
            stream,
            num_groups,
            multiple=world.size // math.gcd(world.size, trainer.num_generations),
            max_rounds=trainer.args.dynamic_sampling_max_rounds,
        )
        rounds = []
        for indices in fill:
            rounds.append(self.generate_round(batch, indices))
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

    def generate_round(self, batch: GenerationBatch, indices: list[int]) -> GeneratedRound:
        """Generate and score the rollouts of some prompts, each process its share. Every process must call it."""
        trainer = self._trainer
        rows = self._source.rows(indices)
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
        if trainer.is_world_process_zero():
            logger.warning(
                f"Dynamic sampling found {filled.num_kept} mixed prompts for a batch of {num_groups}, in "
                f"{filled.num_rounds} rounds and {filled.num_generated} prompts. The rest of the batch is made up of "
                f"prompts that do not differ."
            )


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
