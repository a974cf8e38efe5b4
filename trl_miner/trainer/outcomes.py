"""How the prompts of a generation batch came out, and what a training remembers of it.

# B rollouts of this process, N of the global batch, P prompts of it, G = num_generations rollouts
per prompt
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from ..methods.distributed import current_world
from .config import MinerGRPOConfig
from .prompt_keys import key_text, prompt_key, prompt_text
from .selection import Selection, make_selection


@dataclass
class PromptOutcomes:
    """How the prompts of a generation batch came out, round by round."""

    rollouts: int  # of each prompt
    keys: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    correct: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    spread: list[float | None] = field(default_factory=list)
    dropped: Sequence[int] = ()  # places in `keys`
    left_out: Sequence[str] = ()  # keys of prompts that `prompt_selection` passed over

    def add(
        self,
        rows: Sequence[Mapping[str, Any]],
        rewards_N: Tensor,
        verifier_rewards_N: Tensor,
        *,
        correct_threshold: float,
    ) -> None:
        """Add the prompts of a round. Every process must call it, with the B `rows` of its
        rollouts.

        A reward of NaN was not scored; a rollout is correct from the verifier's reward
        `correct_threshold` on.
        """
        first = current_world().rank * len(rows)
        # A process looks at the prompts whose first rollout it has.
        asked = [row for place, row in enumerate(rows, first) if place % self.rollouts == 0]
        prompts = gather_object([(key_text(prompt_key(row)), prompt_text(row)) for row in asked])
        self.keys += [key for key, _ in prompts]
        self.texts += [text for _, text in prompts]
        rewards_PG, verified_PG = (
            values.view(-1, self.rollouts) for values in (rewards_N, verifier_rewards_N)
        )
        self.correct += (verified_PG >= correct_threshold).sum(dim=1).tolist()
        self.scored += (~verified_PG.isnan()).sum(dim=1).tolist()
        is_unknown_PG = rewards_PG.isnan()
        lowest_P = rewards_PG.masked_fill(is_unknown_PG, torch.inf).amin(dim=1)
        highest_P = rewards_PG.masked_fill(is_unknown_PG, -torch.inf).amax(dim=1)
        self.spread += _numbers(highest_P - lowest_P)


def _numbers(values_P: Tensor) -> list[float | None]:
    """Return numbers to six digits, which is what the ledger has; None for those that are not
    finite."""
    is_finite = values_P.isfinite().tolist()
    return [
        float(f"{value:.6g}") if ok else None
        for value, ok in zip(values_P.tolist(), is_finite, strict=True)
    ]


class PromptHistory:
    """How prompts came out so far, the same on every process: for `prompt_selection`, and for
    methods that ask for the past.

    Attributes:
        selection: The decisions of `prompt_selection`; None: it is off.
    """

    def __init__(self, args: MinerGRPOConfig, num_generations: int) -> None:
        self._num_generations = num_generations
        self._has_reader = any(method.reads_past for method in args.estimators)
        self.selection: Selection | None = make_selection(args)
        self._num_correct: Counter[str] = Counter()  # rollouts so far, by the prompt's key
        self._newest: list[str] = []  # keys of the prompts of the newest batch
        self._before: list[int] = []  # `_num_correct` of each of them, before this batch

    def observe(self, outcomes: PromptOutcomes) -> dict[str, float]:
        """Take a batch that is complete into account; return what is to be logged."""
        metrics: dict[str, float] = {}
        if self.selection is not None:
            generated = {*outcomes.keys}
            outcomes.left_out = [key for key in self.selection.left_out if key not in generated]
            self.selection.observe(outcomes, outcomes.keys)
            metrics = {
                "selection/skipped": float(len(outcomes.left_out)),
                **self.selection.metrics(),
            }
        dropped = {*outcomes.dropped}
        self._newest = [key for i, key in enumerate(outcomes.keys) if i not in dropped]
        self._before = [self._num_correct[key] for key in self._newest]
        if self._has_reader:
            for key, correct in zip(outcomes.keys, outcomes.correct, strict=True):
                self._num_correct[key] += correct
        return metrics

    def past_correct(self) -> Tensor:
        """Return (N,), how many rollouts of each one's prompt in the newest batch were correct
        before this batch."""
        return torch.tensor(self._before).repeat_interleave(self._num_generations)

    def prompt_keys(self) -> Tensor:
        """Return (N,), the key of each rollout's prompt in the newest batch."""
        keys = [int(key, 16) for key in self._newest]
        return torch.tensor(keys).repeat_interleave(self._num_generations)

    def state_dict(self) -> dict[str, Any]:
        """Return the past, as JSON."""
        selection = None if self.selection is None else self.selection.state_dict()
        return {"correct": dict(self._num_correct), "selection": selection}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a past."""
        self._num_correct = Counter(state["correct"])
        if self.selection is not None:
            self.selection.load_state_dict(state["selection"])
