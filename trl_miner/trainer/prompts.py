"""Prompts: the stream that `dynamic_sampling`, `adaptive_sampling_rounds` and `prompt_selection`
draw from."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from ..methods.distributed import current_world
from .config import MinerGRPOConfig
from .prompt_keys import key_text, prompt_key
from .selection import Selection
from .trl_names import RepeatSampler


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

    def __init__(self, args: MinerGRPOConfig, selection: Selection | None) -> None:
        self._args, self._selection = args, selection
        self._rows: Any = None
        self._stream: PromptStream | None = None  # None: no prompt has been drawn
        self._position: dict[str, Any] | None = None  # where the stream is to begin

    def begin(self, rows: Any) -> None:
        """Draw from a data set, if nothing has been drawn yet."""
        if self._stream is not None:
            return
        # TRL's order, prompt by prompt, and to the last one.
        order = RepeatSampler(
            rows, mini_repeat_count=1, shuffle=self._args.shuffle_dataset, seed=self._args.seed
        )
        key = cache(lambda i: key_text(prompt_key(rows[i])))
        self._rows = rows
        self._stream = PromptStream(order, len(rows), self._selection, key)
        if self._position is not None:
            self._stream.load_state(self._position)

    @property
    def stream(self) -> PromptStream:
        """The prompts by their index."""
        assert self._stream is not None, "begin comes first"
        return self._stream

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as JSON."""
        return {"stream": self._position if self._stream is None else self._stream.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin anew, at the position of another source over the same data."""
        self._stream, self._position = None, state["stream"]

    def draw_rows(self, num_rows: int) -> list[Any]:
        """Return this process's rows of the next generation batch. Every process must call it."""
        num_groups = num_rows * current_world().size // self._args.num_generations
        return self.rows(self.stream.draw(num_groups, set()))

    def rows(self, indices: list[int]) -> list[Any]:
        """Return this process's share of the rows with these indices, each as often as it has
        rollouts."""
        repeated = [index for index in indices for _ in range(self._args.num_generations)]
        mine = repeated[current_world().local_slice(len(repeated) // current_world().size)]
        return [self._rows[index] for index in mine]
