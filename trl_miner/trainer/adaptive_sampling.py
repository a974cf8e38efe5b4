"""Reinforce-Ada's sampling (arXiv 2510.04996): sample a prompt in rounds until it has right and wrong rollouts.

All decisions follow from global rewards, so every process makes the same ones and equally many rounds.

# N rollouts of the global batch or of a round, P prompts of the batch, G = num_generations rollouts of each
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..distributed import current_world
from .dynamic_sampling import RoundSampling
from .generation_batch import GeneratedRound, GenerationBatch, correct_rollouts, total_rewards
from .prompts import PromptSource


@dataclass(frozen=True)
class PromptStatistics:
    """The total rewards of all rollouts of each prompt of a batch, those that are not in the batch included."""

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
    """Return the places of `size` of a prompt's rollouts, ascending: half of them right and half wrong, as far as
    there are; of each the first ones. 1 is right, 0 wrong, NaN unscorable, which comes last."""
    right, wrong = ([place for place, value in enumerate(correct) if value == kind] for kind in (1, 0))
    num_right = min(size // 2, len(right))
    num_wrong = min(size - num_right, len(wrong))
    chosen = right[: size - num_wrong] + wrong[:num_wrong]
    others = [place for place, value in enumerate(correct) if math.isnan(value)]
    return sorted(chosen + others[: size - len(chosen)])


def is_balanced(correct: Sequence[float], size: int) -> bool:
    """Return whether half of a group of this size could be right, and half wrong."""
    return correct.count(1) >= size // 2 and correct.count(0) >= size - size // 2


class AdaptiveSampling(RoundSampling):
    """Fills generation batches with rollouts chosen among those of several rounds.

    Source: arXiv 2510.04996; RLHFlow/Reinforce-Ada @ 05be605 with reinforce_ada_choice "balanced" and global_stat_est.
    """

    def fill(self, source: PromptSource, batch: GenerationBatch, num_rows: int) -> list[Any]:
        """Sample every prompt of a batch in rounds; return this process's rows of it. Every process must call it.

        A prompt leaves the rounds once half of a group could be right and half wrong. What is chosen of a prompt that
        never was mixed is its first group.
        """
        trainer, world, size = self._trainer, current_world(), self._trainer.num_generations
        prompts = source.stream.draw(num_rows * world.size // size, set())
        multiple = world.size // math.gcd(world.size, size)  # of prompts, so that the processes get equal shares
        rounds: list[GeneratedRound] = []
        places: list[list[tuple[int, int]]] = [[] for _ in prompts]  # of each prompt's rollouts: round, and row in it
        correct: list[list[float]] = [[] for _ in prompts]
        rewards: list[list[float]] = [[] for _ in prompts]
        active = [*range(len(prompts))]
        while active and len(rounds) < trainer.args.adaptive_sampling_rounds:
            others = [prompt for prompt in range(len(prompts)) if prompt not in active]
            drawn = active + others[: -len(active) % multiple]
            one = self._generate_round(source.rows([prompts[prompt] for prompt in drawn]))
            totals_N = total_rewards(one.rewards_NF, trainer.reward_weights)
            correct_N = correct_rollouts(trainer.verifier.rewards(one.rewards_NF), trainer.args.correct_threshold)
            for i, prompt in enumerate(drawn):
                own = slice(i * size, (i + 1) * size)
                places[prompt] += [(len(rounds), row) for row in range(own.start, own.stop)]
                correct[prompt] += correct_N[own].tolist()
                rewards[prompt] += totals_N[own].tolist()
            rounds.append(one)
            active = [prompt for prompt in active if not is_balanced(correct[prompt], size)]
        wanted = []
        for own_places, own_correct in zip(places, correct, strict=True):
            wanted += [own_places[place] for place in choose_rollouts(own_correct, size)]
        # further samples of the same prompts
        batch.outcomes.dropped = [*range(len(prompts), len(batch.outcomes.keys))]
        batch.num_generated = sum(map(len, places))
        batch.statistics = _statistics(rewards, rounds[0].rewards_NF.device)
        metrics = {
            "adaptive_sampling/generated": batch.num_generated,
            "adaptive_sampling/rounds": len(rounds),
            "adaptive_sampling/mixed": sum(1 in own and 0 in own for own in correct) / len(correct),
            "adaptive_sampling/epoch": source.stream.epoch,
        }
        return self._finish(batch, rounds, wanted, metrics)


def _statistics(rewards: Sequence[Sequence[float]], device: torch.device) -> PromptStatistics:
    means, stds = [], []
    for own in rewards:
        known = torch.tensor([value for value in own if not math.isnan(value)])
        means.append(known.mean().item())
        stds.append(known.std().item() if len(known) > 1 else 0.0)
    return PromptStatistics(torch.tensor(means, device=device), torch.tensor(stds, device=device))
