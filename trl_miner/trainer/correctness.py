"""Warnings where `correct_threshold` does not fit the rewards, or where no prompt is left for a
method to learn from.

# N rollouts of the global batch, F reward functions
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..distributed import current_world
from ..methods.compose import NONE
from ..methods.groups import GroupKinds, grouped
from ..rewards import text_of

logger = logging.getLogger(__name__)

BATCHES = 5  # generation batches before a warning
# prompts with correct rollouts alone, of which a method that learns from such should have had one
RIGHT_PROMPTS = 10


class CorrectnessWatch:
    """Looks at the rewards of the first generation batches, and warns where all count as correct,
    or none.

    It sees gathered rewards, so it comes to the same on every process; the main one warns. A
    resumed run counts again.
    """

    def __init__(self, args: Any, verifier: Any, num_generations: int) -> None:
        self._threshold, self._verifier, self._num_generations = (
            args.correct_threshold,
            verifier,
            num_generations,
        )
        self._num_batches = 0
        self._seen = torch.empty(0)  # lowest and highest of the rewards that decide
        self._completions: Sequence[Any] = ()  # of this process, generated last
        taker = args.composition.homogeneous.get("all_right", NONE)
        # of all-right prompts; None: none needs one, or there was one
        self._taker = (
            None if taker.name in (NONE.name, args.composition.mixed.name) else taker.label
        )
        self._num_right = 0  # prompts with correct rollouts alone

    def observe(self, rewards_NF: Tensor, completions: Sequence[Any] = ()) -> None:
        """Look at some rollouts, a generation batch or a round of dynamic sampling: the rewards of
        all processes, and this one's completions."""
        self._completions = completions
        rewards_N = self._verifier.rewards(rewards_NF).cpu()
        seen = torch.cat([self._seen, rewards_N[~rewards_N.isnan()]])
        self._seen = torch.stack(seen.aminmax()) if len(seen) else seen

    def end_batch(self, verifier_rewards_N: Tensor, kinds: GroupKinds) -> None:
        """Count a generation batch, and look back after the fifth."""
        is_right_N = verifier_rewards_N >= self._threshold
        self._num_right += int(grouped(is_right_N, self._num_generations).all(dim=1).sum())
        if kinds.is_ph_N.any():
            self._taker = None
        self._num_batches += 1
        if (
            self._num_batches == BATCHES
            and (problem := self._problem())
            and current_world().rank == 0
        ):
            logger.warning(f"After {BATCHES} generation batches {problem}")

    def _problem(self) -> str:
        """Return what is odd about the rewards so far; empty: nothing, as far as one can see."""
        by = " and ".join(self._verifier.names)
        if not len(self._seen):
            return (
                f"no rollout can be scored: {by} returned None. Look at the golds, or set"
                " correct_reward_func."
            )
        is_right, (low, high) = self._seen >= self._threshold, self._seen.tolist()
        given = f"{by} gave {low:.7g} to {high:.7g}, and correct_threshold is {self._threshold:.7g}"
        change = "change it, or set correct_reward_func to the reward function that verifies"
        if not is_right.any():
            texts = [text_of(completion) for completion in self._completions]
            ends = " ".join(
                f"{text[-150:]!r}" for text in dict.fromkeys(texts[:: max(1, len(texts) // 2)])
            )
            return (
                f"not one answer was right: {given}. The last ones end with {ends or 'nothing'}. If"
                f" some are right, {change}; if they are cut off, raise max_completion_length; if"
                " they lack a box alone, set math_accept_unboxed: true; else take easier problems"
                " or a stronger model, or teach it the form of the answer with trl-miner sft."
            )
        if is_right.all() and low < high:
            return (
                f"every rollout is correct: {given}. If that is not where a right answer begins,"
                f" {change}."
            )
        if self._taker is not None and self._num_right >= RIGHT_PROMPTS:
            return (
                f"{self._taker} has had nothing to learn from: {self._num_right} prompts with"
                " correct rollouts alone had unequal rewards. Set gate_on_correctness: true, or"
                " round the rewards that differ between right answers (of length, say), or give"
                " them a weight of 0."
            )
        return ""
