"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): generate and score prompts until a batch is full of those
that differ in correctness.

All decisions follow from global rewards, so every process makes the same ones and equally many rounds.

# N rollouts of the global batch or of a round, P prompts of it, F reward functions, G = num_generations rollouts each
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from accelerate.utils import gather_object
from numpy import ndarray
from torch import Tensor

from ..distributed import World, current_world
from ..methods.groups import differs_in_correctness
from .generation_batch import (
    COMPLETION_IDS,
    COMPLETIONS,
    EXTRA_FIELDS,
    GeneratedRound,
    GenerationBatch,
)
from .prompts import PromptSource, PromptStream

logger = logging.getLogger(__name__)


class Group(NamedTuple):
    """A prompt that was generated for a batch."""

    round: int
    place: int  # in the round
    prompt: int  # its index in the data set
    is_mixed: bool  # whether its rollouts differ in correctness


@dataclass(frozen=True)
class FilledBatch:
    """What a batch was filled with."""

    generated: Sequence[Group]  # of all rounds, in order
    groups: Sequence[Group]  # those of them that are in the batch, in order

    @property
    def num_mixed(self) -> int:
        return sum(group.is_mixed for group in self.groups)

    @property
    def num_rounds(self) -> int:
        return self.generated[-1].round + 1

    @property
    def dropped(self) -> list[int]:
        """The places in `generated` of those that are not in the batch."""
        used = set(self.groups)
        return [place for place, group in enumerate(self.generated) if group not in used]


def fill_batch(
    stream: PromptStream,
    num_groups: int,
    generate: Callable[[list[int]], Iterable[bool]],
    *,
    multiple: int = 1,
    max_rounds: int = 10,
) -> FilledBatch:
    """Return a batch of prompts, after as many rounds as it takes while prompts are left.

    Groups that are mixed beyond a full batch go back to the stream. Others, in order, take the places that are left.

    Args:
        stream: The source of prompts.
        num_groups: Prompts of a full batch.
        generate: Generates and scores prompts; returns of each whether it is mixed.
        multiple: Every round holds a multiple of so many prompts, so that the processes get equal shares.
        max_rounds: Rounds at most.
    """
    groups: list[Group] = []
    taken: set[int] = set()
    for number in range(max_rounds):
        indices = _draw_round(stream, num_groups, groups, taken, multiple)
        if not indices:
            break
        outcomes = zip(indices, generate(indices), strict=True)
        groups += [Group(number, place, index, is_mixed) for place, (index, is_mixed) in enumerate(outcomes)]
    mixed = [group for group in groups if group.is_mixed]
    stream.put_back([group.prompt for group in mixed[num_groups:]])
    others = [group for group in groups if not group.is_mixed]
    return FilledBatch(groups, sorted((mixed + others)[:num_groups]))


def _draw_round(
    stream: PromptStream, num_groups: int, groups: Sequence[Group], taken: set[int], multiple: int
) -> list[int]:
    """Return the prompts of the next round; none where the batch is full, or too few prompts are left."""
    num_mixed = sum(group.is_mixed for group in groups)
    missing = num_groups - num_mixed
    if missing <= 0:
        return []
    # As many as the share kept so far asks for: what is missing alone would take ten rounds, not suffice.
    wanted = math.ceil(missing * len(groups) / max(1, num_mixed)) if groups else missing
    wanted = min(num_groups, math.ceil(wanted / multiple) * multiple)
    indices = stream.draw(wanted, taken)
    usable = len(indices) // multiple * multiple  # fewer, where the batch takes the last prompts
    stream.put_back(indices[usable:])
    return indices[:usable]


def join_rounds(rounds: Sequence[GeneratedRound], wanted: Sequence[tuple[int, int]], world: World) -> GeneratedRound:
    """Return the rows of a batch, each on the process that its place in the batch assigns it to.

    `wanted` names them by round and row. A value that only other rows have is None. Every process must call it.
    """
    if len(rounds) == 1:  # every process has what it needs
        return rounds[0]
    rewards_NF = torch.stack([rounds[r].rewards_NF[row] for r, row in wanted])
    of_rounds = [gather_object([*zip(one.rows, _values_of_rows(one), strict=True)]) for one in rounds]
    batch = [of_rounds[r][row] for r, row in wanted]
    names = {name for _, values in batch for name in values}
    mine = batch[world.local_slice(len(batch) // world.size)]
    joined = {name: [values.get(name) for _, values in mine] for name in names}
    columns = {*_values_of_rows(rounds[0])[0]}
    generated = tuple(joined.get(k, None if k in columns else part) for k, part in enumerate(rounds[0].generated))
    extra = {name: joined[name] for name in sorted(name for name in joined if isinstance(name, str))}
    return GeneratedRound([row for row, _ in mine], generated, rewards_NF, extra)


def _values_of_rows(one: GeneratedRound) -> list[dict[int | str, Any]]:
    """Return what holds a value for each row, by its place in `generated` or its name in `extra`, row by row."""
    columns: dict[int | str, Any] = dict(one.extra.items())
    for k, part in enumerate(one.generated):
        if isinstance(part, Sequence | Tensor | ndarray) and len(part) == len(one.rows):
            columns[k] = part.tolist() if isinstance(part, Tensor) else part
    return [{name: values[i] for name, values in columns.items()} for i in range(len(one.rows))]


class RoundSampling:
    """Generates rounds of rollouts by a trainer.

    It takes the whole trainer: it generates and scores by the trainer's own methods, those of subclasses included.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def fill(self, source: PromptSource, batch: GenerationBatch, num_rows: int) -> list[Any]:
        """Generate and score a batch; return this process's rows of it. Every process must call it."""
        raise NotImplementedError

    def _generate_round(self, rows: list[Any]) -> GeneratedRound:
        """Generate and score this process's rows of a round. Every process must call it."""
        trainer, prompts = self._trainer, [row["prompt"] for row in rows]
        generated = trainer._generate(prompts)
        fields = generated[EXTRA_FIELDS] or {}  # TRL would write one round's into the rows of the batch
        generated = (*generated[:EXTRA_FIELDS], {}, *generated[EXTRA_FIELDS + 1 :])
        for i, row in enumerate(rows):  # as TRL hands what a rollout_func found to the reward functions
            row.update((name, values[i] if isinstance(values, list) else values) for name, values in fields.items())
        rewards_NF = trainer._calculate_rewards(rows, prompts, generated[COMPLETIONS], generated[COMPLETION_IDS])
        extra = {name: values for name, values in trainer._pending_extra_logs.items() if len(values) == len(rows)}
        trainer._pending_extra_logs.clear()
        return GeneratedRound(rows, generated, rewards_NF, extra)

    def _finish(
        self,
        batch: GenerationBatch,
        rounds: list[GeneratedRound],
        wanted: Sequence[tuple[int, int]],
        metrics: dict[str, float],
    ) -> list[Any]:
        """Fill a batch with the wanted rows of its rounds, log, and return this process's rows of it. Every process
        must call it."""
        for name, value in metrics.items():
            self._trainer.log_train_metric(name, float(value))
        batch.prepared = join_rounds(rounds, wanted, current_world())
        self._trainer._pending_extra_logs.update(batch.prepared.extra)
        return batch.prepared.rows


class DynamicSampling(RoundSampling):
    """Fills generation batches with prompts that differ in correctness."""

    def fill(self, source: PromptSource, batch: GenerationBatch, num_rows: int) -> list[Any]:
        """Generate and score until a batch is full; return this process's rows of it. Every process must call it."""
        trainer, world, size = self._trainer, current_world(), self._trainer.num_generations
        num_groups = num_rows * world.size // size
        rounds: list[GeneratedRound] = []

        def generate(indices: list[int]) -> list[bool]:
            rounds.append(self._generate_round(source.rows(indices)))
            rewards_N = trainer.verifier.rewards(rounds[-1].rewards_NF)
            threshold = trainer.args.correct_threshold
            found: list[bool] = differs_in_correctness(rewards_N, size, correct_threshold=threshold).tolist()
            return found

        multiple = world.size // math.gcd(world.size, size)
        max_rounds = trainer.args.dynamic_sampling_max_rounds
        filled = fill_batch(source.stream, num_groups, generate, multiple=multiple, max_rounds=max_rounds)
        batch.outcomes.dropped = filled.dropped
        batch.num_generated = len(filled.generated) * size
        if filled.num_mixed < num_groups and trainer.is_world_process_zero():
            logger.warning(
                f"Dynamic sampling found {filled.num_mixed} mixed prompts for a batch of {num_groups}, in "
                f"{filled.num_rounds} rounds and {len(filled.generated)} prompts. The rest of the batch is made up of "
                f"prompts that do not differ."
            )
        metrics = {
            "dynamic_sampling/generated": batch.num_generated,
            "dynamic_sampling/kept": filled.num_mixed * size,
            "dynamic_sampling/dropped": len(filled.dropped) * size,
            "dynamic_sampling/rounds": filled.num_rounds,
            "dynamic_sampling/full": filled.num_mixed / num_groups,
            "dynamic_sampling/epoch": source.stream.epoch,
        }
        wanted = [(group.round, size * group.place + i) for group in filled.groups for i in range(size)]
        return self._finish(batch, rounds, wanted, metrics)
