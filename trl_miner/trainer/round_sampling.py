"""Sampling in rounds, until a batch is full of prompts, or a group of rollouts, that differ in
correctness: DAPO's dynamic sampling (arXiv 2503.14476, section 3.2) and Reinforce-Ada's adaptive
sampling (arXiv 2510.04996).

All decisions follow from global rewards, so every process makes the same ones and equally many
rounds.

# N rollouts of the global batch or of a round, P prompts of it, F reward functions, G =
num_generations rollouts each
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from ..methods.distributed import current_world
from ..methods.groups import differs_in_correctness
from .core import Core
from .generation_batch import (
    COMPLETION_IDS,
    COMPLETIONS,
    EXTRA_FIELDS,
    GeneratedRound,
    GenerationBatch,
    correct_rollouts,
    total_rewards,
)
from .prompts import PromptSource, PromptStream

logger = logging.getLogger(__name__)
MAX_ROUNDS = 10  # of dynamic sampling, the first included


class Rounds:
    """The rounds of a batch.

    It takes the whole trainer: it generates and scores by the trainer's own methods, those of
    subclasses included.
    """

    def __init__(self, trainer: Core, source: PromptSource) -> None:
        self._trainer, self._source = trainer, source
        self.made: list[GeneratedRound] = []
        # Every round holds a multiple of so many prompts, so that the processes get equal shares.
        self.multiple = current_world().size // math.gcd(
            current_world().size, trainer.num_generations
        )

    def generate(self, prompts: list[int]) -> GeneratedRound:
        """Generate and score a round of prompts, by their index in the data set. Every process must
        call it."""
        trainer, rows = self._trainer, self._source.rows(prompts)
        texts = [row["prompt"] for row in rows]
        generated = trainer._generate(texts)
        # TRL would write one round's into the rows of the batch
        fields = generated[EXTRA_FIELDS] or {}
        generated = (*generated[:EXTRA_FIELDS], {}, *generated[EXTRA_FIELDS + 1 :])
        # as TRL hands what a rollout_func found to the reward functions
        for i, row in enumerate(rows):
            row.update(
                (name, values[i] if isinstance(values, list) else values)
                for name, values in fields.items()
            )
        completions = generated[COMPLETIONS]
        rewards_NF = trainer._calculate_rewards(rows, texts, completions, generated[COMPLETION_IDS])
        trainer.note_rewards(rows, rewards_NF, completions)
        # they are of all rounds, and TRL would log them beside the batch's rows
        trainer._pending_extra_logs.clear()
        self.made.append(GeneratedRound(rows, generated, rewards_NF))
        return self.made[-1]


def join_rounds(rounds: Sequence[GeneratedRound], wanted: Sequence[int]) -> GeneratedRound:
    """Return the rows of a batch, each on the process that its place in the batch assigns it to.

    `wanted` are their places among the rows of all rounds and processes. A value that only other
    rows have is None. Rows that are on their process already stay there. Every process must call
    it.
    """
    if len(rounds) == 1:  # every process has what it needs
        return rounds[0]
    world, rewards_NF = current_world(), torch.cat([one.rewards_NF for one in rounds])
    own, start = dict[int, tuple[Any, ...]](), 0  # by place
    for one in rounds:
        first = start + world.local_slice(len(one.rows)).start
        own |= dict(enumerate(_by_row(one), first))
        start += len(one.rewards_NF)
    share, sent = len(wanted) // world.size, list[list[Any]]()
    for rank in range(world.size):
        places = range(rank * share, (rank + 1) * share)
        sent.append([(k, own[wanted[k]]) for k in places if wanted[k] in own])
    mine = [row for _, row in sorted(world.exchange(sent, rewards_NF.device), key=itemgetter(0))]
    generated = [*rounds[0].generated]
    has_values = [any(values[k] is not None for _, values in mine) for k in range(len(generated))]
    counts = world.sum(torch.tensor(has_values, device=rewards_NF.device).int()).tolist()
    for k, part in enumerate(generated):
        if counts[k]:
            generated[k] = [values[k] for _, values in mine]
        elif part:  # of other rows
            generated[k] = None
    return GeneratedRound([row for row, _ in mine], tuple(generated), rewards_NF[list(wanted)])


def _by_row(generated_round: GeneratedRound) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return each row with its values in `generated`; None where there is none for each row."""
    size = len(generated_round.rows)
    columns = [
        part if isinstance(part, list) and len(part) == size else [None] * size
        for part in generated_round.generated
    ]
    return [*zip(generated_round.rows, zip(*columns, strict=True), strict=True)]


# Dynamic sampling: other prompts in the place of those whose rollouts are all right or all wrong.


def fill_batch(
    stream: PromptStream,
    num_groups: int,
    generate: Callable[[list[int]], Iterable[bool]],
    *,
    multiple: int = 1,
    max_rounds: int = 10,
) -> tuple[list[int], list[bool], list[int]]:
    """Generate prompts in as many rounds as a full batch takes, while prompts are left.

    Groups that are mixed beyond a full batch go back to the stream. Others, in order, take the
    places that are left.

    Args:
        stream: The source of prompts.
        num_groups: Prompts of a full batch.
        generate: Generates and scores prompts; returns of each whether its rollouts differ in
            correctness.
        multiple: Every round holds a multiple of so many prompts.
        max_rounds: Rounds at most.

    Returns:
        The prompts of all rounds, whether each is mixed, and the places among them of those in the
        batch.
    """
    prompts, is_mixed, taken = list[int](), list[bool](), set[int]()
    for _ in range(max_rounds):
        missing = num_groups - sum(is_mixed)
        if missing <= 0:
            break
        # As many as the share kept so far asks for: what is missing alone would take ten rounds,
        # not suffice.
        wanted = math.ceil(missing * len(prompts) / max(1, sum(is_mixed))) if prompts else missing
        indices = stream.draw(min(num_groups, math.ceil(wanted / multiple) * multiple), taken)
        # fewer, where the batch takes the last prompts
        usable = len(indices) // multiple * multiple
        stream.put_back(indices[usable:])
        if not usable:
            break
        prompts += indices[:usable]
        is_mixed += generate(indices[:usable])
    mixed = [place for place, is_one in enumerate(is_mixed) if is_one]
    others = [place for place, is_one in enumerate(is_mixed) if not is_one]
    stream.put_back([prompts[place] for place in mixed[num_groups:]])
    return prompts, is_mixed, sorted((mixed + others)[:num_groups])


def sample_dynamically(
    trainer: Core, source: PromptSource, batch: GenerationBatch, num_rows: int
) -> dict[str, float]:
    """Generate and score until a batch, `num_rows` for each process, is full; return what is to be
    logged. Every process must call it."""
    size, rounds = trainer.num_generations, Rounds(trainer, source)
    num_groups = num_rows * current_world().size // size

    def generate(prompts: list[int]) -> list[bool]:
        rewards_N = trainer.verifier.rewards(rounds.generate(prompts).rewards_NF)
        threshold = trainer.args.correct_threshold
        is_mixed: list[bool] = differs_in_correctness(
            rewards_N, size, correct_threshold=threshold
        ).tolist()
        return is_mixed

    limits = {"multiple": rounds.multiple, "max_rounds": MAX_ROUNDS}
    generated, is_mixed, kept = fill_batch(source.stream, num_groups, generate, **limits)
    batch.prepared = join_rounds(
        rounds.made, [size * place + i for place in kept for i in range(size)]
    )
    batch.num_generated = len(generated) * size
    batch.outcomes.dropped = sorted({*range(len(generated))} - {*kept})
    num_mixed = sum(is_mixed[place] for place in kept)
    if num_mixed < num_groups and trainer.is_world_process_zero():
        logger.warning(
            f"Dynamic sampling found {num_mixed} mixed prompts for a batch of {num_groups}, in"
            f" {len(rounds.made)} rounds and {len(generated)} prompts. The rest of the batch is"
            " made up of prompts that do not differ."
        )
    return {
        "dynamic_sampling/generated": batch.num_generated,
        "dynamic_sampling/kept": num_mixed * size,
        "dynamic_sampling/dropped": len(batch.outcomes.dropped) * size,
        "dynamic_sampling/rounds": len(rounds.made),
        "dynamic_sampling/full": num_mixed / num_groups,
        "dynamic_sampling/epoch": source.stream.epoch,
    }


# Adaptive sampling: further rollouts of a prompt, until it has right and wrong ones.


@dataclass(frozen=True)
class PromptStatistics:
    """The total rewards of all rollouts of each prompt of a batch, those that are not in the batch
    included; of a prompt that never was mixed those in the batch alone."""

    mean_P: Tensor
    std_P: Tensor  # of the sample; 0 for a single one

    def advantages(self, rewards_N: Tensor, scale: str, std_eps: float = 1e-4) -> Tensor:
        """Return (N,) GRPO's advantages by these statistics; 0 for an unscorable rollout.

        Args:
            rewards_N: (N,) total rewards of the batch; NaN: unscorable.
            scale: TRL's `scale_rewards`: "group", "batch" or "none".
            std_eps: Added to the standard deviation, in reward units, as TRL does.
        """
        num_generations = len(rewards_N) // len(self.mean_P)
        centered_N = rewards_N - self.mean_P.repeat_interleave(num_generations)
        if scale == "group":
            centered_N = centered_N / (self.std_P.repeat_interleave(num_generations) + std_eps)
        elif scale == "batch":
            centered_N = centered_N / (rewards_N[~rewards_N.isnan()].std() + std_eps)
        return centered_N.nan_to_num(nan=0.0)


def choose_rollouts(correct: Sequence[float], size: int) -> list[int]:
    """Return the places of `size` of a prompt's rollouts, ascending: half of them right and half
    wrong, as far as there are; of each the first ones. 1 is right, 0 wrong, NaN unscorable, which
    comes last."""
    right, wrong = (
        [place for place, value in enumerate(correct) if value == kind] for kind in (1, 0)
    )
    num_right = min(size // 2, len(right))
    num_wrong = min(size - num_right, len(wrong))
    chosen = right[: size - num_wrong] + wrong[:num_wrong]
    others = [place for place, value in enumerate(correct) if math.isnan(value)]
    return sorted(chosen + others[: size - len(chosen)])


def is_balanced(correct: Sequence[float], size: int) -> bool:
    """Return whether half of a group of this size could be right, and half wrong."""
    return correct.count(1) >= size // 2 and correct.count(0) >= size - size // 2


def sample_adaptively(
    trainer: Core, source: PromptSource, batch: GenerationBatch, num_rows: int
) -> dict[str, float]:
    """Sample every prompt of a batch, `num_rows` for each process, in rounds, and choose among its
    rollouts; return what is to be logged. Every process must call it.

    A prompt leaves the rounds once half of a group could be right and half wrong. What is chosen of
    a prompt that never was mixed is its first group.

    Source: arXiv 2510.04996; RLHFlow/Reinforce-Ada @ 05be605 with reinforce_ada_choice "balanced"
        and global_stat_est.
    """
    size, rounds = trainer.num_generations, Rounds(trainer, source)
    prompts = source.stream.draw(num_rows * current_world().size // size, set())
    # of each prompt's rollouts, among all that were generated
    places: list[list[int]] = [[] for _ in prompts]
    correct: list[list[float]] = [[] for _ in prompts]
    rewards: list[list[float]] = [[] for _ in prompts]
    active = [*range(len(prompts))]
    while active and len(rounds.made) < trainer.args.adaptive_sampling_rounds:
        others = [prompt for prompt in range(len(prompts)) if prompt not in active]
        drawn = active + others[: -len(active) % rounds.multiple]
        num_before = sum(map(len, places))
        rewards_NF = rounds.generate([prompts[prompt] for prompt in drawn]).rewards_NF
        totals_N = total_rewards(rewards_NF, trainer.reward_weights)
        correct_N = correct_rollouts(
            trainer.verifier.rewards(rewards_NF), trainer.args.correct_threshold
        )
        for i, prompt in enumerate(drawn):
            part = slice(i * size, (i + 1) * size)
            places[prompt] += range(num_before + part.start, num_before + part.stop)
            correct[prompt] += correct_N[part].tolist()
            rewards[prompt] += totals_N[part].tolist()
        active = [prompt for prompt in active if not is_balanced(correct[prompt], size)]
    wanted, judged_by = list[int](), list[list[float]]()
    for own_places, own_correct, own_rewards in zip(places, correct, rewards, strict=True):
        chosen = choose_rollouts(own_correct, size)
        wanted += [own_places[place] for place in chosen]
        is_mixed = 1 in own_correct and 0 in own_correct
        judged_by.append(own_rewards if is_mixed else [own_rewards[place] for place in chosen])
    batch.prepared = join_rounds(rounds.made, wanted)
    batch.num_generated = sum(map(len, places))
    # further samples of the same prompts
    batch.outcomes.dropped = [*range(len(prompts), len(batch.outcomes.keys))]
    batch.statistics = _statistics(judged_by, rewards_NF.device)
    return {
        "adaptive_sampling/generated": batch.num_generated,
        "adaptive_sampling/rounds": len(rounds.made),
        "adaptive_sampling/mixed": sum(1 in part and 0 in part for part in correct) / len(correct),
        "adaptive_sampling/epoch": source.stream.epoch,
    }


def _statistics(rewards: Sequence[Sequence[float]], device: torch.device) -> PromptStatistics:
    scored = [
        torch.tensor([value for value in of_prompt if not math.isnan(value)])
        for of_prompt in rewards
    ]
    means = [values.mean().item() for values in scored]
    stds = [values.std().item() if len(values) > 1 else 0.0 for values in scored]
    return PromptStatistics(torch.tensor(means, device=device), torch.tensor(stds, device=device))
