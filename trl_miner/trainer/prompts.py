"""Prompts: the training set, read late, and the stream that `dynamic_sampling` and `prompt_selection` draw from."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from typing import Any

from datasets import Dataset as Rows
from torch.utils.data import Dataset
from trl.trainer.utils import RepeatSampler

from ..distributed import current_world
from ..runs.prompt_ledger import key_text, prompt_key
from .prompt_log import PromptLog


class PromptRows(Dataset[Any]):
    """A training set whose batches are read when TRL generates for them.

    TRL draws the rows of the whole generation batch anew for each of its micro-batches and looks at the first draw
    alone. With hundreds of micro-batches, reading the others took longer than anything else around the model.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]

    def __getitems__(self, indices: Sequence[int]) -> "LateRows":
        return LateRows(self._rows, indices)


class LateRows(Sequence[dict[str, Any]]):
    """The rows of a batch, as the list that TRL's data loader would hand out; the first use reads them."""

    def __init__(self, rows: Rows, indices: Sequence[int]) -> None:
        self._from, self._indices = rows, indices

    @cached_property
    def _read(self) -> list[dict[str, Any]]:
        return self._from.__getitems__(self._indices)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: Any) -> Any:
        return self._read[place]

    def __contains__(self, name: object) -> bool:
        """transformers looks for tensors by name in every batch; rows have none."""
        return False


class PromptStream:
    """The prompts of a data set, pass after pass, each exactly once in a pass, in the order of a seeded sampler."""

    def __init__(self, order: Iterable[int], num_prompts: int) -> None:
        """Make a stream over the prompts in the order of a sampler, which is asked anew for each pass."""
        self._order, self._num_prompts = order, num_prompts
        # Whether the next batch leaves out a prompt, as long as there are others
        self.skips: Callable[[int], bool] = lambda index: False
        # Returns so many of some prompts, `candidates` times as many where there are
        self.choose: Callable[[list[int], int], list[int]] = lambda indices, count: indices
        self.candidates = 1
        self._passes = 0  # begun so far
        self._pass: list[int] = []
        self._position = 0
        self._waiting: list[int] = []  # drawn, but to be drawn again before anything else

    @property
    def epoch(self) -> float:
        """The passes over the data so far."""
        return max(0.0, self._passes - 1 + (self._position - len(self._waiting)) / self._num_prompts)

    def draw(self, count: int, taken: set[int]) -> list[int]:
        """Return the next `count` prompts that are not in `taken`, which they join; fewer when every prompt is taken.

        A prompt that is in the batch already comes first in the next batch. A skipped one comes in the next pass over
        the data; but where no others are left, the batch is refilled with skipped ones, the first ones first.
        """
        drawn: list[int] = []
        postponed: list[int] = []
        skipped: dict[int, None] = {}
        while len(drawn) < count * self.candidates and len(taken) + len(skipped) < self._num_prompts:
            index = self._next()
            if index in taken:
                postponed.append(index)
            elif self.skips(index):
                skipped[index] = None
            else:
                taken.add(index)
                drawn.append(index)
        chosen = self.choose(drawn, count)
        taken.difference_update({*drawn} - {*chosen})
        refill = [*skipped][: count - len(chosen)]
        taken.update(refill)
        self.put_back(postponed)
        return chosen + refill

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
    """Draws prompts in the order of TRL's sampler, in the place of TRL's dataloader."""

    def __init__(self, rows: Any, sampler: Any, num_generations: int, log: PromptLog) -> None:
        """Begin with the first prompt of the training set, in the order of TRL's sampler.

        `log` says which prompts the next batch leaves out.
        """
        if not isinstance(sampler, RepeatSampler):
            raise ValueError(
                f"dynamic_sampling and prompt_selection need TRL's RepeatSampler: got {type(sampler).__name__} from "
                f"_get_train_sampler. Leave them out, or order the training set beforehand."
            )
        # The same order, prompt by prompt, and to the last one.
        sampler.mini_repeat_count = sampler.batch_size = sampler.repeat_count = 1
        self._rows, self._num_generations = rows, num_generations
        self.stream = PromptStream(sampler, len(rows))
        if log.selection is not None:
            key = cache(lambda index: key_text(prompt_key(rows[index])))
            self.stream.skips = lambda index: log.skips(key(index))
            self.stream.choose = lambda indices, count: [
                indices[place] for place in log.choose([*map(key, indices)], count)
            ]
            self.stream.candidates = log.selection.candidates

    def draw_rows(self, num_rows: int) -> list[Any]:
        """Return this process's rows of the next generation batch. Every process must call it."""
        num_groups = num_rows * current_world().size // self._num_generations
        return self.rows(self.stream.draw(num_groups, set()))

    def rows(self, indices: list[int]) -> list[Any]:
        """Return this process's share of the rows with these indices, each as often as it has rollouts."""
        repeated = [index for index in indices for _ in range(self._num_generations)]
        mine = repeated[current_world().local_slice(len(repeated) // current_world().size)]
        return [self._rows[index] for index in mine]
