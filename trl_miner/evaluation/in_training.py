"""Score a model on held-out problems while it trains."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback


class EvaluationCallback(TrainerCallback):
    """Scores held-out problems every so many steps, and whenever `record` is called.

    Pass@1 and Pass@k go to the log (`eval_pass@1`, `eval_pass@8`) and, as the number of correct
    samples of each problem, into `held_out.json` of `output_dir`. Every process samples its share.
    A scoring changes nothing in the training: neither the model nor a random state.

    Args:
        trainer: The trainer whose model is scored.
        problems: A data set with the columns `prompt` and those that the reward function needs,
            such as `solution`.
        samples: Completions per problem, at the temperature of the training.
        every_steps: Optimizer steps between two scorings; 0: none in between.
        reward_func: Grades the completions, at `correct_threshold`; None: the trainer's own
            functions that decide what is correct. Where it returns None, a completion has no
            verdict and is left out.
        batch_size: Completions that transformers generates at a time.
    """

    def __init__(
        self,
        trainer: Any,
        problems: Any,
        samples: int = 8,
        every_steps: int = 0,
        reward_func: Callable[..., Any] | None = None,
        batch_size: int = 256,
    ) -> None:
        raise NotImplementedError

    def record(self, moment: str) -> dict[str, float]:
        """Score the model as it is, and return the scores. Every process must call it.

        Args:
            moment: Its name in `held_out.json`: "before", "after", or "step 100".
        """
        raise NotImplementedError

    def restore(self, checkpoint: str | None) -> bool:
        """Take over the scores of an interrupted run up to a checkpoint; return whether there were
        any. Every process must call it."""
        raise NotImplementedError
