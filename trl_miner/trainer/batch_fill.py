"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): which prompts to draw, keep and drop.

Decisions alone, without a model. Every process makes the same ones from the same global rewards, and so stays in step
with the others.

# N = P*G rollouts of one round, P prompts of it, G = num_generations rollouts each
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..distributed import World
from ..methods.groups import grouped


def differs_in_correctness(
    verifier_rewards_N: Tensor, num_generations: int, *, correct_threshold: float = 1.0
) -> Tensor:
    """Return (P,) bool: whether a group holds a correct and an incorrect rollout. An unscorable one (NaN) is neither.

    Source: arXiv 2503.14476, section 3.2: 0 < number of correct rollouts < G. The published code decides by whether
        the standard deviation of a metric is above 0, which keeps groups of wrong answers with unequal part marks.
    """
    rewards_PG = grouped(verifier_rewards_N, num_generations, "verifier_rewards_N")
    return (rewards_PG >= correct_threshold).any(dim=1) & (rewards_PG < correct_threshold).any(dim=1)


class PromptStream:
    """The prompts of a data set, pass after pass, each exactly once in a pass, in the order of a seeded sampler."""

    def __init__(self, order: Iterable[int], num_prompts: int) -> None:
        self._order, self._num_prompts = order, num_prompts
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
    num_dropped: int  # those of them that are not in the batch
    num_rounds: int  # rounds that the batch took


@dataclass
class BatchFill:
    """Fill one batch of prompts: `for indices in fill: ...; fill.record(...)`, then `fill.finish()`."""

    stream: PromptStream  # the source of prompts
    num_groups: int  # prompts of a full batch
    multiple: int = 1  # every round holds a multiple of so many prompts, so that the processes get equal shares
    max_rounds: int = 10  # rounds in all, the first included
    # factor on the prompts of a refill, which are those that the share kept so far asks for. (Drawing only what is
    # missing would take ten rounds and not suffice.)
    oversample: float = 1.0
    _taken: set[int] = field(default_factory=set)
    _rounds: list[_Round] = field(default_factory=list)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the prompts of each round, for as long as groups are missing and rounds and prompts are left."""
        while len(self._rounds) < self.max_rounds and (missing := self.num_groups - self.num_kept) > 0:
            wanted = missing
            if self._rounds:
                num_drawn = sum(len(each.indices) for each in self._rounds)
                wanted = math.ceil(missing * num_drawn / max(1, self.num_kept) * self.oversample)
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
        return Filled(
            groups,
            num_kept=min(len(kept), self.num_groups),
            num_generated=len(places),
            num_dropped=len(places) - len(groups),
            num_rounds=len(self._rounds),
        )


class GeneratedRound(NamedTuple):
    """The rollouts and rewards of one round, on this process."""

    rows: list[Any]  # rows of the data set
    generated: tuple[Any, ...]  # what TRL's `_generate` returned; a list as long as `rows` holds a value for each
    rewards_NF: Tensor  # (N, F) rewards of all processes, by reward function
    extra: dict[str, list[Any]]  # further columns to be logged, by name


def assemble(
    rounds: Sequence[GeneratedRound],
    filled: Filled,
    num_generations: int,
    world: World,
    gather: Callable[[list[Any]], list[Any]],
) -> GeneratedRound:
    """Join rounds into one of the batch's rows, each on the process that its place in the batch assigns it to."""
    wanted = [(r, num_generations * place + i) for r, place in filled.groups for i in range(num_generations)]
    if len(rounds) == 1:  # every process has what it needs
        return rounds[0]
    rewards_NF = torch.stack([rounds[r].rewards_NF[row] for r, row in wanted])
    whole = rounds[0].generated
    is_column = [isinstance(part, list) and len(part) == len(rounds[0].rows) for part in whole]
    payloads = [
        [
            (
                row,
                [part[i] if per_row else None for part, per_row in zip(each.generated, is_column, strict=True)],
                {name: values[i] for name, values in each.extra.items()},
            )
            for i, row in enumerate(each.rows)
        ]
        for each in rounds
    ]
    mine = share_out(payloads, wanted, world, gather)
    generated = tuple(
        [columns[k] for _, columns, _ in mine] if per_row else part
        for k, (part, per_row) in enumerate(zip(whole, is_column, strict=True))
    )
    names = sorted({name for _, _, extra in mine for name in extra})
    extra = {name: [extra.get(name) for _, _, extra in mine] for name in names}
    return GeneratedRound([row for row, _, _ in mine], generated, rewards_NF, extra)


def share_out(
    rounds: Sequence[Sequence[Any]],
    wanted: Sequence[tuple[int, int]],
    world: World,
    gather: Callable[[list[Any]], list[Any]],
) -> list[Any]:
    """Return this process's share of the wanted rows, (round, row of all processes) each, wherever they are.

    `gather` joins the lists of all processes, in rank order. Every process must call it.
    """
    chosen = set(wanted)
    here: dict[tuple[int, int], Any] = {}
    for number, rows in enumerate(rounds):
        first = world.local_slice(len(rows)).start
        here |= {(number, first + i): row for i, row in enumerate(rows) if (number, first + i) in chosen}
    everywhere = dict(gather([*here.items()]))
    return [everywhere[place] for place in wanted[world.local_slice(len(wanted) // world.size)]]
