"""What the trainer tells of each generation batch, and to whom: records of a run are observers.

# N rollouts of the global batch, B of this process, T padded completion tokens
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ..methods import Estimate, Rollouts
from .outcomes import PromptOutcomes


@dataclass(frozen=True)
class ScoredBatch:
    """A generation batch, generated, scored and with its advantages, before the first step that
    trains on it."""

    step: int  # the first optimizer step that trains on it
    steps: range  # the optimizer steps in which it is the first to be trained
    rows: Sequence[Mapping[str, Any]]  # of the data set, one for each of this process's B rollouts
    outcomes: PromptOutcomes  # of all processes, prompts included that are not trained
    rollouts: Rollouts  # with the rewards and GRPO's advantages before `gate_on_correctness`
    verifier_rewards_N: Tensor
    estimate: Estimate  # the advantages that are trained
    # Returns of chosen rollouts of all processes, (N,) bool, their tokens with log-probs and
    # advantages, on the main process; on others nothing. Every process must call it.
    token_rows: Callable[[Tensor], list[dict[str, Any]]]


class Observer(Protocol):
    """Whoever wants to know of every generation batch: append it to `trainer.observers`."""

    def observe(self, batch: ScoredBatch) -> None:
        """Look at a batch and leave it as it is. Every process calls it."""
