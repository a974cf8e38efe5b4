"""What a run must remember from one checkpoint to the next, beside what transformers saves."""

from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState


class RunState(TrainerCallback, ExportableState):
    """Lies in every checkpoint's `trainer_state.json`, and comes back from it when training resumes.

    Attributes:
        generated: Rollouts generated so far, on all processes, dropped ones included.
        used: Those of them that had an advantage.
        tokens: Completion tokens of all that was generated.
        stream: Where the prompt stream of dynamic sampling stands; None: not begun.
        has_begun: Training has begun (again) since somebody last set this to False.
    """

    def __init__(self) -> None:
        self.generated = 0
        self.used = 0
        self.tokens = 0
        self.stream: dict[str, Any] | None = None
        self.has_begun = False

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, in transformers' form."""
        names = ("generated", "used", "tokens", "stream")
        return {"args": {}, "attributes": {name: getattr(self, name) for name in names}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # transformers restores callbacks on request alone (restore_callback_states_from_checkpoint); the order of the
        # data is not a matter of choice.
        for name, value in state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {}).items():
            setattr(self, name, value)
        self.has_begun = True
