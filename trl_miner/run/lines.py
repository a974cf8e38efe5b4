"""What a terminal shows of a training: one line for each log."""

from typing import Any

from transformers import TrainerCallback

# A metric, and the words around it. Shares are of the prompts or the completions of a batch.
_SHOWN = {
    "reward": "reward {:.3f}",
    "groups/ph": "prompts all right {:.0%}",
    "completions/used": "completions with a gradient {:.0%}",
    "completions/grpo": "GRPO alone {:.0%}",
    "entropy": "entropy {:.3f}",
    "step_time": "{:.2f} s a step",
}


class LogLines(TrainerCallback):
    """Prints one line for each log, in the place of transformers' bar and dictionaries."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        logs = logs or {}
        if state.is_world_process_zero and "reward" in logs:
            shown = [text.format(logs[name]) for name, text in _SHOWN.items() if name in logs]
            step = f"step {state.global_step} of {state.max_steps}"
            print(f"{step}: {' | '.join(shown)}", flush=True)
