"""Warnings where `correct_threshold` or a method does not fit the rewards, or where no prompt is left for MINER.

# N rollouts of the global batch, F reward functions
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from .. import rewards
from ..distributed import current_world
from ..methods.compose import NONE
from ..methods.groups import GroupKinds, grouped
from ..reward_functions import WHERE_NONE_IS_RIGHT, show_ends

logger = logging.getLogger(__name__)

BATCHES = 5  # generation batches before a warning
ROUNDING = 1e-6  # of a sum of weighted rewards
RIGHT_PROMPTS = 10  # prompts with correct rollouts alone, before a warning that each has unequal rewards


class CorrectnessWatch:
    """Looks at the rewards of all rollouts generated, and warns once where all of them, or none, count as correct.

    It sees gathered rewards, so it comes to the same on every process; the main one warns. A resumed run counts again.
    """

    def __init__(self, args: Any, verifier: Any, num_generations: int) -> None:
        self._args, self._verifier, self._num_generations = args, verifier, num_generations
        self._num_batches = 0
        self._low, self._high = math.inf, -math.inf  # of the rewards that decide
        self._has_right = self._has_wrong = self._is_done = False
        taker = args.composition.homogeneous.get("all_right", NONE)
        # of all-right prompts; None: none needs one, or there was one
        self._taker = None if taker.name in (NONE.name, args.composition.mixed.name) else taker.label
        self._num_right = 0  # prompts with correct rollouts alone
        self._bounded = [method for method in args.composition.methods if method.reward_range != (None, None)]
        self._rows: Sequence[Mapping[str, Any]] = ()  # of this process, generated last
        self._completions: Sequence[Any] = ()  # to them
        self._num_cut = 0  # of them, those that end at max_completion_length

    def observe(
        self,
        rewards_NF: Tensor,
        rows: Sequence[Mapping[str, Any]] = (),
        completions: Sequence[Any] = (),
        completion_ids: Sequence[Sequence[int]] = (),
    ) -> None:
        """Look at the rewards of some rollouts: a generation batch, or a round of dynamic sampling.

        Args:
            rewards_NF: Of all processes.
            rows: Of this process, as are the next two.
            completions: Texts or conversations.
            completion_ids: Their tokens.
        """
        self._rows, self._completions = rows, completions
        self._num_cut = sum(len(ids) >= self._args.max_completion_length for ids in completion_ids)
        rewards_N = self._verifier.rewards(rewards_NF)
        rewards_N = rewards_N[~rewards_N.isnan()]
        if len(rewards_N):
            is_right_N = rewards_N >= self._args.correct_threshold
            self._low = min(self._low, rewards_N.min().item())
            self._high = max(self._high, rewards_N.max().item())
            self._has_right |= bool(is_right_N.any())
            self._has_wrong |= not bool(is_right_N.all())

    def end_batch(self) -> None:
        """Count a generation batch, and warn from the fifth on."""
        self._num_batches += 1
        if self._num_batches == BATCHES and self._low == self._high and self._has_wrong and not self._has_right:
            _warn(f"After {self._num_batches} generation batches {self._nothing_right()}")
        if self._is_done or self._num_batches < BATCHES or not (problem := self._problem()):
            return
        self._is_done = True
        _warn(f"After {self._num_batches} generation batches: {problem}")

    def _problem(self) -> str | None:
        """Return what is odd about the rewards so far; None: nothing, as far as one can see."""
        by, threshold = " and ".join(self._verifier.names), self._args.correct_threshold
        other = "or set correct_reward_func to what verifies: one reward function, or a task's each, joined by '+'."
        if not (self._has_right or self._has_wrong):
            return f"no rollout can be scored: {by} returned None. Look at the golds, {other}"
        if self._low == self._high or (self._has_right and self._has_wrong):
            return None  # all wrong is what a hard start looks like
        if self._has_right:
            return (
                f"every rollout is correct, although rewards of {by} differ: the smallest is {self._low:.7g}, "
                f"correct_threshold is {threshold:.7g}. If that is not a right answer's, raise correct_threshold, "
                f"{other}"
            )
        return (
            f"no rollout is correct, although rewards of {by} differ: the largest is {self._high:.7g}, "
            f"correct_threshold is {threshold:.7g}. Credit for all-right prompts and dynamic sampling need correct "
            f"rollouts. If that is a right answer's, lower correct_threshold, {other}"
        )

    def _nothing_right(self) -> str:
        """Return what can be seen of the last answers where none has been right, and what may help."""
        by = " and ".join(self._verifier.names)
        texts = [rewards.text_of(completion) for completion in self._completions]
        advice = [*WHERE_NONE_IS_RIGHT]
        if self._num_cut:
            advice.insert(
                0, f"raise max_completion_length, at which {self._num_cut} of the last {len(texts)} answers end"
            )
        if "math_reward" in by and (unboxed := self._num_right_without_a_box()):
            advice.insert(
                0, f"set math_accept_unboxed: true, for {unboxed} of the last {len(texts)} are right but for their box"
            )
        return (
            f"not one answer was right. {by} gave {self._low:g} to all of them; the last "
            f"ones end with {show_ends(texts[:: max(1, len(texts) // 2)])}. What may help: {'; '.join(advice)}."
        )

    def _num_right_without_a_box(self) -> int:
        if current_world().rank != 0 or not all("solution" in row for row in self._rows):
            return 0
        golds = [row["solution"] for row in self._rows]
        return sum(reward == 1.0 for reward in rewards.math_reward([*self._completions], golds, accept_unboxed=True))

    def look_for_all_right(self, verifier_rewards_N: Tensor, kinds: GroupKinds) -> None:
        """Warn where a method learns from all-right prompts, and another reward always differs there."""
        if self._taker is None:
            return
        is_right_N = verifier_rewards_N >= self._args.correct_threshold
        self._num_right += int(grouped(is_right_N, self._num_generations).all(dim=1).sum())
        if kinds.is_ph_N.any():
            self._taker = None
        elif self._num_right >= RIGHT_PROMPTS:
            _warn(
                f"{self._taker} has had nothing to learn from: the first {self._num_right} prompts with correct "
                f"rollouts alone had unequal rewards, and there GRPO's advantages stay. Set gate_on_correctness: "
                f"true, or round the rewards that differ between right answers (of length, say), give them a weight "
                f"of 0, or set advantage_estimator: grpo."
            )
            self._taker = None

    def look_at_range(self, rewards_N: Tensor) -> None:
        """Warn once of each method that is made for other total rewards than these."""
        scored_N = rewards_N[~rewards_N.isnan()]
        if not self._bounded or not len(scored_N):
            return
        low, high = (limit.item() for limit in scored_N.aminmax())
        for method in [*self._bounded]:
            least, most = method.reward_range
            most = self._args.knobs(method.name)[most] if isinstance(most, str) else most
            if (least is None or low >= least - ROUNDING) and (most is None or high <= most + ROUNDING):
                continue
            self._bounded.remove(method)
            words = {"at least": least, "at most": most}
            limits = [f"{word} {limit:g}" for word, limit in words.items() if limit is not None]
            _warn(
                f"{method.label} is made for total rewards of {' and '.join(limits)}: got {low:.7g} to {high:.7g}. It "
                f"goes on with these, but its advantages are not those of its paper. Change the rewards or "
                f"reward_weights (0 for those of format and length), or choose another method."
            )


def _warn(text: str) -> None:
    if current_world().rank == 0:
        logger.warning(text)
