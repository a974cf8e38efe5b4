"""The prompts of a training set in a seeded order that can be saved and resumed."""

from collections.abc import Iterable, Sequence
from typing import Any


class PromptStream:
    """The prompts of a data set, pass after pass, each exactly once in a pass, in the order of a sampler.

    Args:
        order: Yields every index once at each `iter()`. A shuffling sampler must be seeded, since `load_state` winds a
            fresh one forward.
        num_prompts: Length of a pass, at least 1.

    Raises:
        ValueError: A pass does not hold every index once.
    """

    def __init__(self, order: Iterable[int], num_prompts: int) -> None:
        self._order = order
        self._num_prompts = num_prompts
        self._passes = 0  # begun so far
        self._pass: list[int] = []
        self._position = 0
        self._waiting: list[int] = []  # drawn, but to be drawn again before anything else

    @property
    def epoch(self) -> float:
        """The passes over the data so far."""
        if not self._passes:
            return 0.0
        return self._passes - 1 + (self._position - len(self._waiting)) / self._num_prompts

    def draw(self, count: int, taken: set[int]) -> list[int]:
        """Return the next `count` prompts that are not in `taken`, which they join; fewer when every prompt is taken.

        A prompt that is passed over because it is in the batch already comes first in the next batch.
        """
        drawn: list[int] = []
        passed_over: list[int] = []
        while len(drawn) < count and len(taken) < self._num_prompts:
            index = self._next()
            if index in taken:
                passed_over.append(index)
            else:
                taken.add(index)
                drawn.append(index)
        self._waiting = passed_over + self._waiting
        return drawn

    def put_back(self, indices: Sequence[int]) -> None:
        """Have these prompts come first in the next draw."""
        self._waiting = [*indices, *self._waiting]

    def state(self) -> dict[str, Any]:
        """Return the position of the stream, as JSON."""
        return {"passes": self._passes, "position": self._position, "waiting": list(self._waiting)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go to the position of another stream over the same data. Call it on a fresh one.

        Raises:
            ValueError: The state is that of a longer data set.
        """
        if max([state["position"], *(index + 1 for index in state["waiting"])]) > self._num_prompts:
            raise ValueError(
                f"The sampling state must come from the same training set: it names prompt "
                f"{max([state['position'], *state['waiting']])}, there are {self._num_prompts}. Resume with the data "
                f"of the first start."
            )
        while self._passes < state["passes"]:
            self._begin_pass()
        self._position = state["position"]
        self._waiting = list(state["waiting"])

    def _next(self) -> int:
        if self._waiting:
            return self._waiting.pop(0)
        if self._position == len(self._pass):
            self._begin_pass()
        self._position += 1
        return self._pass[self._position - 1]

    def _begin_pass(self) -> None:
        self._pass = [int(index) for index in self._order]
        if sorted(self._pass) != list(range(self._num_prompts)):
            raise ValueError(
                f"The order of the prompts must hold each of the {self._num_prompts} once: got {len(self._pass)} "
                f"indices, {len(set(self._pass))} of them different. Pass a sampler that drops and repeats nothing."
            )
        self._position = 0
        self._passes += 1
