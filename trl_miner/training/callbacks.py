"""What a terminal shows of a training: how far it is, and a line for each log."""

from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from ..common.progress import Progress, is_quiet
from ..common.text import one_line
from ..trainer.observers import ScoredBatch

# What to show of a log: a metric, and the words around it. Shares are per cent, of the prompts or of
# the completions of the generation batch.
_SHOWN = {
    "reward": "reward {:.3f}",
    "groups/ph": "prompts all right {:.0f} %",
    "rollouts/used": "completions with a gradient {:.0f} %",
    "rollouts/grpo": "(GRPO alone: {:.0f} %)",
    "entropy": "entropy {:.3f}",
    "step_time": "{:.2f} s/step",
}


def short_line(step: int, logs: dict[str, Any]) -> str:
    """Return one log as one line; metrics that it lacks are left out."""
    parts = [
        text.format(logs[key] * (100 if "%" in text else 1))
        for key, text in _SHOWN.items()
        if logs.get(key) is not None
    ]
    return f"step {step}: " + " | ".join(parts).replace(" | (", " (")


def why_unmoved(trainer: Any) -> str:
    """Return a sentence on scores that are after a training what they were before it, and why that
    may be; empty: they are not."""
    before, after = (trainer.evaluation.get(moment, {}) for moment in ("before", "after"))
    score = after.get("pass@1")
    if score is None or score != before.get("pass@1"):
        return ""
    totals = [log["rollouts/used_total"] for log in trainer.state.log_history
              if "rollouts/used_total" in log]  # fmt: skip
    if score == 1:
        why = "the model solves all of these problems: take harder ones"
    elif totals and totals[-1] == 0:
        why = (
            "no completion had an advantage, as those of each prompt were all right or all wrong:"
            " take problems of which the model solves some, and look at its completions in the"
            " report"
        )
    else:
        rate, steps = trainer.args.learning_rate, trainer.state.global_step
        why = (
            f"{steps} steps at learning_rate {rate:g} may be too few or too small: try"
            f" --learning_rate {10 * rate:g} or more max_steps, and score more problems (held_out)"
        )
    return (
        f"The scores are what they were before the training, Pass@1 {score:.3f}. It may be that"
        f" {why}."
    )


def show_training(trainer: Any) -> None:
    """Replace transformers' bar and its dictionaries of numbers.

    With `--quiet` nothing replaces them, with `disable_tqdm` the dictionaries stay.
    """
    if is_quiet():
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
    elif not trainer.args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        shown = TrainingProgress(trainer)
        # first, so that the last scores, which another one prints, stand below the bar
        trainer.callback_handler.callbacks.insert(0, shown)
        trainer.observers.append(shown)


class TrainingProgress(TrainerCallback):
    """Shows progress over the optimizer steps, and for each log `short_line` and a rollout of the
    latest generation batch.

    Args:
        trainer: Of which it is an observer, too.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._sample, self._takes_best = "", False

    def observe(self, batch: ScoredBatch) -> None:
        """Take the best and the worst rollout of the batches in turn."""
        every = max(1, int(self._trainer.args.logging_steps))
        if not any(step % every == 0 for step in batch.steps):
            return  # no log will show it
        rewards_B = batch.rollouts.local(batch.rollouts.rewards_N).nan_to_num()
        self._takes_best = not self._takes_best
        place = int(rewards_B.argmax() if self._takes_best else rewards_B.argmin())
        prompt, answer = batch.rows[place].get("prompt", ""), batch.rollouts.texts()[place]
        asked = prompt if isinstance(prompt, str) else (prompt or [{}])[-1].get("content")
        self._sample = (
            f"  {one_line(str(asked).strip(), 80)} -> {one_line(answer.strip(), 160)}"
            f" (reward {rewards_B[place].item():g})"
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        is_shown = state.is_world_process_zero
        self._bar = Progress(
            "training", state.max_steps, unit="steps", initial=state.global_step, quiet=not is_shown
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.update()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and logs and "reward" in logs:
            print(short_line(state.global_step, logs), flush=True)
            if self._sample:
                print(self._sample, flush=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.close()
