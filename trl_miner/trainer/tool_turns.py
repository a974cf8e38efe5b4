"""Turns of a rollout with tools: as many on every process where they generate together."""

from collections.abc import Callable
from typing import Any

from ..distributed import current_world


class ToolTurns:
    """Has every process take part in each generation of any process's tool loop.

    TRL's loop ends on each process once none of its own rollouts calls a tool. A vLLM server, its tensor parallelism,
    ZeRO-3 and FSDP generate on all processes at once, so that the others would wait forever.
    """

    def __init__(self, trainer: Any) -> None:
        is_shared = trainer.use_vllm or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
        self._must_agree = current_world().size > 1 and is_shared
        self._device, self._is_looping = trainer.accelerator.device, False

    def run(self, loop: Callable[[], Any], take_part: Callable[[], Any]) -> Any:
        """Return what TRL's loop returns, after `take_part` for each generation that others make after its end.

        Every process must call it.
        """
        if not self._must_agree:
            return loop()
        self._is_looping = True
        try:
            result = loop()
        finally:
            self._is_looping = False
        while self._anyone_generates(False):
            take_part()
        return result

    def announce(self) -> None:
        """Tell the processes that are done that this one generates once more. In the loop, call it before that."""
        if self._is_looping:
            self._anyone_generates(True)

    def _anyone_generates(self, does_this: bool) -> bool:
        return not current_world().all(not does_this, self._device)
