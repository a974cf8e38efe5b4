"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): which prompts to draw, keep and drop.

Decisions alone, without a model. Every process makes the same ones from the same global rewards, and so stays in step
with the others.

# N = P*G rollouts of one round, P prompts of it, G = num_generations rollouts each
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from numpy import ndarray
from torch import Tensor

from ..distributed import World


class PromptStream:
    """The prompts of a data set, pass after pass, each exactly once in a pass, in the order of a seeded sampler."""

    def __init__(
        self, order: Iterable[int], num_prompts: int, passes_over: Callable[[int], bool] | None = None
    ) -> None:
        """Make a stream over the prompts in the order of a sampler, which is asked anew for each pass.

        `passes_over` says which prompts the batch that comes next leaves out, while there are others.
        """
        self._order, self._num_prompts, self._passes_over = order, num_prompts, passes_over
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

        A prompt that is in the batch already comes first in the next batch. One that `passes_over` names comes in the
        next pass over the data; but where no others are left, those that came up first fill the batch.
        """
        drawn: list[int] = []
        postponed: list[int] = []
        left_out: dict[int, None] = {}
        while len(drawn) < count and len(taken) + len(left_out) < self._num_prompts:
            index = self._next()
            if index in taken:
                postponed.append(index)
            elif self._passes_over is not None and self._passes_over(index):
                left_out[index] = None
            else:
                taken.add(index)
                drawn.append(index)
        back = [*left_out][: count - len(drawn)]
        taken.update(back)
        self._waiting = postponed + self._waiting
        return drawn + back

    def put_back(self, indices: Sequence[int]) -> None:
        """Have these prompts come first in the next draw."""
        self._waiting = [*indices, *self._waiting]

    def state(self) -> dict[str, Any]:
        """Return the position of the stream, as JSON."""
        return {"passes": self._passes, "position": self._position, "waiting": list(self._waiting)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go to the position of another stream over the same data. Call it on a fresh one."""
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


@dataclass
class _Round:
    indices: list[int]
    keep: list[bool] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Filled:
    """A full batch."""

    groups: list[tuple[int, int]]  # (round, place in that round) of each group, in the order in which they were drawn
    num_kept: int  # groups of the batch that differ in correctness; the others only fill it up
    num_generated: int  # groups of all rounds
    dropped: list[int]  # those of them that are not in the batch, by their place among all
    num_rounds: int  # rounds that the batch took


@dataclass
class BatchFill:
    """Fill one batch of prompts: `for indices in fill: ...; fill.record(...)`, then `fill.finish()`."""

    stream: PromptStream  # the source of prompts
    num_groups: int  # prompts of a full batch
    multiple: int = 1  # every round holds a multiple of so many prompts, so that the processes get equal shares
    max_rounds: int = 10  # rounds in all, the first included
    _taken: set[int] = field(default_factory=set)
    _rounds: list[_Round] = field(default_factory=list)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the prompts of each round, for as long as groups are missing and rounds and prompts are left."""
        while len(self._rounds) < self.max_rounds and (missing := self.num_groups - self.num_kept) > 0:
            wanted = missing
            if self._rounds:
                # As many as the share kept so far asks for: what is missing alone would take ten rounds, not suffice.
                num_drawn = sum(len(each.indices) for each in self._rounds)
                wanted = math.ceil(missing * num_drawn / max(1, self.num_kept))
            wanted = min(self.num_groups, math.ceil(wanted / self.multiple) * self.multiple)
            indices = self.stream.draw(wanted, self._taken)
            usable = len(indices) // self.multiple * self.multiple  # fewer, where the batch takes the last prompts
            self.stream.put_back(indices[usable:])
            del indices[usable:]
            if not indices:
                return
            self._rounds.append(_Round(indices))
            yield indices

    @property
    def num_kept(self) -> int:
        """The groups so far that differ in correctness."""
        return sum(sum(each.keep) for each in self._rounds)

    def record(self, keep: Sequence[bool], spread: Sequence[float]) -> None:
        """Record which groups of the round just drawn differ in correctness, and the spread of their rewards."""
        self._rounds[-1].keep, self._rounds[-1].spread = list(keep), list(spread)

    def finish(self) -> Filled:
        """Return the batch.

        Kept groups beyond a full batch go back to the stream. Dropped groups take the places that are left: first
        those whose rewards at least differ in something (a length penalty), then those drawn first.
        """
        places = [(r, p) for r, each in enumerate(self._rounds) for p in range(len(each.indices))]
        kept = [(r, p) for r, p in places if self._rounds[r].keep[p]]
        self.stream.put_back([self._rounds[r].indices[p] for r, p in kept[self.num_groups :]])
        groups = kept[: self.num_groups]
        dropped = [(r, p) for r, p in places if not self._rounds[r].keep[p]]
        dropped.sort(key=lambda place: -self._rounds[place[0]].spread[place[1]])
        groups = sorted(groups + dropped[: self.num_groups - len(groups)])
        used = set(groups)
        return Filled(
            groups,
            num_kept=min(len(kept), self.num_groups),
            num_generated=len(places),
            dropped=[place for place, group in enumerate(places) if group not in used],
            num_rounds=len(self._rounds),
        )


class GeneratedRound(NamedTuple):
    """The rollouts and rewards of one round, on this process."""

    rows: list[Any]  # rows of the data set
    generated: tuple[Any, ...]  # what TRL's `_generate` returned; what is as long as `rows` holds a value for each
    rewards_NF: Tensor  # (N, F) rewards of all processes, by reward function
    extra: dict[str, list[Any]]  # further columns to be logged, by name


def assemble(rounds: list[GeneratedRound], filled: Filled, num_generations: int, world: World) -> GeneratedRound:
    """Join rounds into one of the batch's rows, each on the process that its place in the batch assigns it to.

    Only rows that change their process are sent. `rounds` is emptied, so that what is not in the batch takes no memory
    meanwhile. A value that only other rows have, whatever process they come from, is None. Every process must call it.
    """
    if len(rounds) == 1:  # every process has what it needs
        return rounds.pop()
    wanted = [(r, num_generations * place + i) for r, place in filled.groups for i in range(num_generations)]
    rewards_NF = torch.stack([rounds[r].rewards_NF[row] for r, row in wanted])
    whole = [None if k in _columns(rounds[0]) else part for k, part in enumerate(rounds[0].generated)]
    own_names = {name for each in rounds for name in _columns(each)}
    parcels = _parcels(rounds, wanted, world)
    rounds.clear()
    arrived = world.exchange(((own_names, parcels.pop(0)) for _ in range(world.size)), rewards_NF.device)
    names = {name for theirs, _ in arrived for name in theirs}
    mine = sorted((row for _, parcel in arrived for row in parcel), key=itemgetter(0))
    joined = {name: [values.get(name) for *_, values in mine] for name in names}
    generated = tuple(joined.get(k, part) for k, part in enumerate(whole))
    extra = {name: joined[name] for name in sorted(name for name in joined if isinstance(name, str))}
    return GeneratedRound([row for _, row, _ in mine], generated, rewards_NF, extra)


def _columns(one: GeneratedRound) -> dict[int | str, Any]:
    """Return what holds a value for each row, by its place in `generated` or its name in `extra`."""
    columns: dict[int | str, Any] = {}
    columns.update(one.extra)
    for k, part in enumerate(one.generated):
        if isinstance(part, Sequence | Tensor | ndarray) and len(part) == len(one.rows):
            columns[k] = part
    return columns


def _parcels(
    rounds: Sequence[GeneratedRound], wanted: Sequence[tuple[int, int]], world: World
) -> list[list[tuple[int, Any, dict[int | str, Any]]]]:
    """Return this process's wanted rows, (round, row of all processes) each, by the process that they go to.

    Each comes as its place in the batch, its row of the data set, and its values by column.
    """
    parcels: list[list[tuple[int, Any, dict[int | str, Any]]]] = [[] for _ in range(world.size)]
    for number, one in enumerate(rounds):
        first, columns = world.local_slice(len(one.rows)).start, _columns(one)
        for place, (r, row) in enumerate(wanted):
            if r == number and 0 <= row - first < len(one.rows):
                values = {name: _plain(column[row - first]) for name, column in columns.items()}
                rank = place // (len(wanted) // world.size)
                parcels[rank].append((place, one.rows[row - first], values))
    return parcels


def _plain(value: Any) -> Any:
    """Return a tensor as a list: a view would be sent with all of its storage, and to a device of the same name."""
    return value.tolist() if isinstance(value, Tensor) else value
