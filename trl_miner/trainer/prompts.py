"""Prompts: the stream that `dynamic_sampling`, `adaptive_sampling_rounds` and `prompt_selection`
draw from."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from trl.trainer.utils import RepeatSampler

from ..distributed import current_world
from ..runs.prompt_ledger import key_text, prompt_key
from .selection import Selection


class PromptStream:
    """The prompts of a data set, pass after pass, each exactly once in a pass, in the order of a
    seeded sampler."""

    def __init__(
        self,
        order: Iterable[int],
        num_prompts: int,
        selection: Selection | None = None,
        key: Callable[[int], str] = str,
    ) -> None:
        """Make a stream over the prompts in the order of a sampler, which is asked anew for each
        pass.

        `selection` says which prompts to leave out, by what `key` returns of each.
        """
        self._order, self._num_prompts = order, num_prompts
        self._selection, self._key = selection, key
        self._passes = 0  # begun so far
        self._pass: list[int] = []
        self._position = 0
        self._waiting: list[int] = []  # drawn, but to be drawn again before anything else

    @property
    def epoch(self) -> float:
        """The passes over the data so far."""
        return max(
            0.0, self._passes - 1 + (self._position - len(self._waiting)) / self._num_prompts
        )

    def draw(self, count: int, taken: set[int]) -> list[int]:
        """Return the next `count` prompts that are not in `taken`, which they join; fewer when
        every prompt is taken.

        A prompt that is in the batch already comes first in the next batch. A skipped one comes in
        the next pass over the data; but where no others are left, the batch is refilled with
        skipped ones, the first ones first.
        """
        selection, drawn, postponed = self._selection, list[int](), list[int]()
        skipped: dict[int, None] = {}
        wanted = count if selection is None else count * selection.candidates
        while len(drawn) < wanted and len(taken) + len(skipped) < self._num_prompts:
            index = self._next()
            if index in taken:
                postponed.append(index)
            elif selection is not None and selection.skips(self._key(index)):
                skipped[index] = None
            else:
                taken.add(index)
                drawn.append(index)
        if selection is not None:
            places = selection.choose([self._key(index) for index in drawn], count)
            chosen = [drawn[place] for place in places]
            taken.difference_update({*drawn} - {*chosen})
            drawn = chosen + [*skipped][: count - len(chosen)]
            taken.update(drawn)
        self.put_back(postponed)
        return drawn

    def put_back(self, indices: Sequence[int]) -> None:
        """Have these prompts come first in the next draw."""
        self._waiting = [*indices, *self._waiting]

    def state(self) -> dict[str, Any]:
        """Return the position of the stream, as JSON."""
        return {"passes": self._passes, "position": self._position, "waiting": list(self._waiting)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go to the position of another stream over the same data. Call it on a fresh one."""
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
        self._position = 0
        self._passes += 1


class PromptSource:
    """Draws the rows of prompts in the order of TRL's sampler, in the place of TRL's dataloader."""

    def __init__(self, rows: Any, args: Any, selection: Selection | None) -> None:
        self._rows, self._num_generations = rows, args.num_generations
        # TRL's order, prompt by prompt, and to the last one.
        order = RepeatSampler(
            rows, mini_repeat_count=1, shuffle=args.shuffle_dataset, seed=args.seed
        )
        self.stream = PromptStream(
            order, len(rows), selection, cache(lambda i: key_text(prompt_key(rows[i])))
        )

    def draw_rows(self, num_rows: int) -> list[Any]:
        """Return this process's rows of the next generation batch. Every process must call it."""
        num_groups = num_rows * current_world().size // self._num_generations
        return self.rows(self.stream.draw(num_groups, set()))

    def rows(self, indices: list[int]) -> list[Any]:
        """Return this process's share of the rows with these indices, each as often as it has
        rollouts."""
        repeated = [index for index in indices for _ in range(self._num_generations)]
        mine = repeated[current_world().local_slice(len(repeated) // current_world().size)]
        return [self._rows[index] for index in mine]
