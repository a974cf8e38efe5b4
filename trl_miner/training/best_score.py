"""The best model of a run by its held-out score, and the end of a run that finds no better one."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..runs.run_folder import BEST


class BestScore(TrainerCallback):
    """Saves the model as `best` in the run folder whenever it scores better than before, and stops.

    It comes behind the callback that scores. Every process calls it.

    Args:
        trainer: With the scores of the run in `evaluation`.
        keeps: Whether to save.
        patience: Scores in a row without a better one after which the training ends; 0: never.
    """

    def __init__(self, trainer: Any, *, keeps: bool, patience: int) -> None:
        self._trainer, self._keeps, self._patience = trainer, keeps, patience

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self._trainer
        scores = {
            moment: metrics["pass@1"] for moment, metrics in trainer.evaluation.items() if metrics
        }
        newest = next(reversed(scores), "before")
        step = state.global_step
        if newest != ("after" if step >= state.max_steps else f"step {step}"):
            return
        best = max(scores, key=lambda moment: scores[moment])  # the earliest of equal ones
        if best == newest and self._keeps:
            trainer.save_model(str(Path(args.output_dir) / BEST), _internal_call=True)
            trainer.accelerator.print(f"best so far: Pass@1 {scores[best]:.3f}, saved as {BEST}")
        since = len(scores) - 1 - [*scores].index(best)
        if self._patience and since >= self._patience and step < state.max_steps:
            trainer.accelerator.print(
                f"Stopped at step {step}: {since} scores in a row are no better than"
                f" {scores[best]:.3f}, {best}."
            )
            control.should_training_stop = True
