"""Warnings where `correct_threshold` does not fit the rewards, or where no prompt is left for a
method to learn from.

# N rollouts of the global batch, F reward functions
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..methods.compose import NONE
from ..methods.distributed import current_world
from ..methods.groups import GroupKinds, grouped
from .config import MinerGRPOConfig
from .reward_functions import Verifier, text_of

logger = logging.getLogger(__name__)

BATCHES = 5  # generation batches before a warning


class CorrectnessWatch:
    """Looks at the rewards of the first generation batches, and warns where all count as correct,
    or none; and where a method that learns from all-right prompts has had none.

    It sees gathered rewards, so it comes to the same on every process; the main one warns. A
    resumed run counts again.
    """

    def __init__(
        self,
        args: MinerGRPOConfig,
        verifier: Verifier,
        num_generations: int,
        names: Sequence[str] = (),
    ) -> None:
        self._threshold, self._verifier, self._num_generations = (
            args.correct_threshold,
            verifier,
            num_generations,
        )
        self._names = names or verifier.names  # of all reward functions
        self._num_batches = 0
        self._seen = torch.empty(0)  # lowest and highest of the rewards that decide
        # of each reward function: which of 0, 1 and others it has given
        self._values: list[set[str]] = [set() for _ in self._names]
        self._completions: Sequence[Any] = ()  # of this process, generated last
        taker = args.composition.homogeneous.get("all_right", NONE)
        # of all-right prompts; None: none needs one, or there was one
        self._taker = (
            None if taker.name in (NONE.name, args.composition.mixed.name) else taker.label
        )
        # Prompts with correct rollouts alone, and the batches with such.
        self._num_right = self._num_right_batches = 0

    def observe(self, rewards_NF: Tensor, completions: Sequence[Any] = ()) -> None:
        """Look at some rollouts, a generation batch or a round of dynamic sampling: the rewards of
        all processes, and this one's completions."""
        self._completions = completions
        rewards_N = self._verifier.rewards(rewards_NF).cpu()
        seen = torch.cat([self._seen, rewards_N[~rewards_N.isnan()]])
        self._seen = torch.stack(seen.aminmax()) if len(seen) else seen
        if self._num_batches < BATCHES:
            for kinds, values_N in zip(self._values, rewards_NF.unbind(dim=1), strict=True):
                given = values_N[~values_N.isnan()].unique().tolist()
                kinds.update(f"{value:g}" if value in (0.0, 1.0) else "other" for value in given)

    def end_batch(self, verifier_rewards_N: Tensor, kinds: GroupKinds) -> None:
        """Count a generation batch, and look back after the fifth, and after the fifth in which a
        prompt had correct rollouts alone."""
        is_right_N = verifier_rewards_N >= self._threshold
        num_right = int(grouped(is_right_N, self._num_generations).all(dim=1).sum())
        self._num_batches += 1
        if self._num_batches == BATCHES and (problem := self._problem()):
            self._warn(problem)
            self._taker = None  # one warning is enough
        if kinds.is_ph_N.any():
            self._taker = None
        if not num_right or self._taker is None:
            return
        self._num_right, self._num_right_batches = (
            self._num_right + num_right,
            self._num_right_batches + 1,
        )
        if self._num_right_batches == BATCHES:
            self._warn(
                f"{self._taker} has had nothing to learn from: the rewards of {self._num_right}"
                " prompts whose completions are all correct differed, so that this run is GRPO."
                " Set gate_on_correctness: true; or round the rewards that differ between correct"
                " completions, such as one for length; or give them a weight of 0."
            )

    def _warn(self, problem: str) -> None:
        if current_world().rank == 0:
            logger.warning(f"After {self._num_batches} generation batches, {problem}")

    def _problem(self) -> str:
        """Return what is odd about the rewards so far; empty: nothing, as far as one can see."""
        by = " and ".join(self._verifier.names)
        if not len(self._seen):
            return (
                f"no completion has been scored: {by} returned None each time. Look at the reference"
                " answers, or set correct_reward_func to another reward function."
            )
        is_right, (low, high) = self._seen >= self._threshold, self._seen.tolist()
        given = f"{by} gave {low:.7g} to {high:.7g}, and correct_threshold is {self._threshold:.7g}"
        if not is_right.any():
            texts = [text_of(completion) for completion in self._completions]
            ends = " ".join(
                f"{text[-150:]!r}" for text in dict.fromkeys(texts[:: max(1, len(texts) // 2)])
            )
            return (
                f"no completion was correct: {given}. The last ones end with {ends or 'nothing'}."
                " Check, in this order:\n"
                "  1. Are they cut off? Raise max_completion_length.\n"
                "  2. Are they right, but without a \\boxed{}? Set math_accept_unboxed: true.\n"
                f"  3. Does another reward decide? Change correct_threshold, or"
                f" {self._other_verifier()}.\n"
                "  4. Otherwise the task is too hard: take easier problems or a stronger model, or"
                " teach it the form of the answers with `trl-miner sft`."
            )
        if is_right.all() and low < high:
            return (
                f"every completion was correct: {given}. If correct completions have higher rewards"
                f" than that, raise correct_threshold, or {self._other_verifier()}."
            )
        return ""

    def _other_verifier(self) -> str:
        """Return what to set where other functions should decide, with those that look like
        verifiers: of 0 and 1 alone."""
        binary = [
            name
            for name, values in zip(self._names, self._values, strict=True)
            if values == {"0", "1"} and [name] != [*self._verifier.names]
        ]
        if not binary:
            return "set correct_reward_func to the reward function that verifies"
        return (
            f"set correct_reward_func: {'+'.join(binary)} ({' and '.join(binary)} gave 0 and 1"
            " alone, as a verifier does)"
        )
