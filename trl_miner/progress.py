"""A progress bar with one short line per log instead of TRL's forty numbers (which stay in the run's log)."""

from typing import Any

from transformers import ProgressCallback

# What to show: metric, title, format. Shares are per cent of the generation batch.
_SHOWN = (
    ("reward", "reward", "{:.3f}"),
    ("groups/ph", "all right", "{:.0%}"),
    ("rollouts/grpo", "GRPO uses", "{:.0%}"),
    ("rollouts/recovered", "recovered", "{:.0%}"),
    ("entropy", "entropy", "{:.3f}"),
    ("step_time", "s/step", "{:.2f}"),
)


def short_line(step: int, logs: dict[str, Any]) -> str:
    """One log as one line; metrics that this log lacks are left out."""
    parts = [f"{title} {form.format(logs[key])}" for key, title, form in _SHOWN if logs.get(key) is not None]
    return f"step {step}: " + ", ".join(parts)


class ShortProgressCallback(ProgressCallback):
    """transformers' progress bar with `short_line` for the logs of training."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and any(key.startswith("eval_pass@") for key in logs):
            return  # `EvaluationCallback` has said it
        if not logs or "reward" not in logs:
            super().on_log(args, state, control, logs=logs, **kwargs)
        elif state.is_world_process_zero and self.training_bar is not None:
            self.training_bar.write(short_line(state.global_step, logs))
