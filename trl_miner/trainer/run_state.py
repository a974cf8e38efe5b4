"""What a run must remember from one checkpoint to the next, besides what transformers saves."""

from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState


class RunState(TrainerCallback, ExportableState):
    """Totals of a run; every checkpoint's `trainer_state.json` keeps them, and resuming restores them.

    Attributes:
        generated: Rollouts generated so far, on all processes, dropped ones included.
        used: Those of them that had an advantage.
        tokens: Completion tokens of all that was generated.
        stream: The position of dynamic sampling's prompt stream; None: it has not started.
        has_begun: Whether training has begun (again) since this was last set to False.
    """

    def __init__(self) -> None:
        self.generated = 0
        self.used = 0
        self.tokens = 0
        self.stream: dict[str, Any] | None = None
        self.has_begun = False

    @classmethod
    def of(cls, trainer: Any) -> "RunState":
        """Return the state of a trainer; looked up each time, since transformers may replace it when it resumes."""
        return next(callback for callback in trainer.callback_handler.callbacks if isinstance(callback, cls))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, in transformers' form."""
        names = ("generated", "used", "tokens", "stream")
        return {"args": {}, "attributes": {name: getattr(self, name) for name in names}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # transformers restores callbacks on request alone (restore_callback_states_from_checkpoint); the order of the
        # data is not a matter of choice.
        for name, value in state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {}).items():
            setattr(self, name, value)
        self.has_begun = True
