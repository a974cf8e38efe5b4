"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): which prompts to draw, keep and drop.

Decisions alone, without a model. Every process makes the same ones from the same global rewards, and so stays in step
with the others.

# N = P*G rollouts of one round, P prompts of it, G = num_generations rollouts each
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..distributed import World
from ..methods.groups import grouped
from .prompt_stream import PromptStream


def differs_in_correctness(
    verifier_rewards_N: Tensor, num_generations: int, *, correct_threshold: float = 1.0
) -> Tensor:
    """Return (P,) bool: whether a group holds a correct and an incorrect rollout. An unscorable one (NaN) is neither.

    Args:
        verifier_rewards_N: (N,) rewards of the verifier alone, before any shaping by length.
        num_generations: G, at least 2.
        correct_threshold: A rollout is correct when its reward is at or above this.

    Source: arXiv 2503.14476, section 3.2: 0 < number of correct rollouts < G. The published code decides by whether
        the standard deviation of a metric is above 0, which keeps groups of wrong answers with unequal part marks.
    """
    rewards_PG = grouped(verifier_rewards_N, num_generations, "verifier_rewards_N")
    return (rewards_PG >= correct_threshold).any(dim=1) & (rewards_PG < correct_threshold).any(dim=1)


@dataclass
class _Round:
    indices: list[int]
    keep: list[bool] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Filled:
    """A full batch.

    Attributes:
        groups: (round, place in that round) of each group, in the order in which they were drawn.
        num_kept: Groups of the batch that differ in correctness; the others only fill it up.
        num_generated, num_dropped: Groups of all rounds, and those of them that are not in the batch.
        num_rounds: Rounds that the batch took.
    """

    groups: list[tuple[int, int]]
    num_kept: int
    num_generated: int
    num_dropped: int
    num_rounds: int


class BatchFill:
    """Fill one batch of prompts: `for indices in fill: ...; fill.record(...)`, then `fill.finish()`.

    Args:
        stream: The source of prompts.
        num_groups: Prompts of a full batch.
        multiple: Every round holds a multiple of so many prompts, so that the processes get equal shares. `num_groups`
            must be a multiple too.
        max_rounds: Rounds in all, the first included.
        oversample: Factor on the prompts of a refill. Without it a refill draws as many as should fill the batch at
            the share that was kept so far, and never more than a full batch. (Drawing only what is missing would take
            ten rounds and not suffice: of 128 prompts with every third mixed, two would still be missing.)
    """

    def __init__(
        self,
        stream: PromptStream,
        num_groups: int,
        *,
        multiple: int = 1,
        max_rounds: int = 10,
        oversample: float = 1.0,
    ) -> None:
        self._stream = stream
        self._num_groups = num_groups
        self._multiple = multiple
        self._max_rounds = max_rounds
        self._oversample = oversample
        self._taken: set[int] = set()
        self._rounds: list[_Round] = []

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the prompts of each round, for as long as groups are missing and rounds and prompts are left."""
        while len(self._rounds) < self._max_rounds and (missing := self._num_groups - self.num_kept) > 0:
            wanted = missing
            if self._rounds:
                num_drawn = sum(len(each.indices) for each in self._rounds)
                wanted = math.ceil(missing * num_drawn / max(1, self.num_kept) * self._oversample)
            wanted = min(self._num_groups, math.ceil(wanted / self._multiple) * self._multiple)
            indices = self._stream.draw(wanted, self._taken)
            usable = len(indices) // self._multiple * self._multiple  # fewer, where the batch takes the last prompts
            self._stream.put_back(indices[usable:])
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
        surplus = kept[self._num_groups :]
        self._stream.put_back([self._rounds[r].indices[p] for r, p in surplus])
        groups = kept[: self._num_groups]
        dropped = [(r, p) for r, p in places if not self._rounds[r].keep[p]]
        dropped.sort(key=lambda place: -self._rounds[place[0]].spread[place[1]])
        groups = sorted(groups + dropped[: self._num_groups - len(groups)])
        return Filled(
            groups,
            num_kept=min(len(kept), self._num_groups),
            num_generated=len(places),
            num_dropped=len(places) - len(groups),
            num_rounds=len(self._rounds),
        )


class GeneratedRound(NamedTuple):
    """The rollouts and rewards of one round, on this process.

    Attributes:
        rows: Rows of the data set.
        generated: What TRL's `_generate` returned; a list as long as `rows` holds a value for each.
        rewards_NF: (N, F) rewards of all processes, by reward function.
        extra: Further columns to be logged, by name.
    """

    rows: list[Any]
    generated: tuple[Any, ...]
    rewards_NF: Tensor
    extra: dict[str, list[Any]]


def assemble(
    rounds: Sequence[GeneratedRound],
    filled: Filled,
    num_generations: int,
    world: World,
    gather: Callable[[list[Any]], list[Any]],
) -> GeneratedRound:
    """Join rounds into one that holds the batch's rows, each on the process that its place in the batch assigns it to.

    Args:
        rounds: All rounds, on every process.
        filled: Their groups that make the batch.
        num_generations: G.
        world: The processes.
        gather: Joins the lists of all processes. Every process must call it.
    """
    wanted = [(r, num_generations * place + i) for r, place in filled.groups for i in range(num_generations)]
    if len(rounds) == 1:  # every process has what it needs
        return rounds[0]
    rewards_NF = torch.stack([rounds[r].rewards_NF[row] for r, row in wanted])
    whole = rounds[0].generated
    is_column = [_is_column(part, len(rounds[0].rows)) for part in whole]
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


def _is_column(part: Any, num_rows: int) -> bool:
    return isinstance(part, list) and len(part) == num_rows


def share_out(
    rounds: Sequence[Sequence[Any]],
    wanted: Sequence[tuple[int, int]],
    world: World,
    gather: Callable[[list[Any]], list[Any]],
) -> list[Any]:
    """Return this process's share of the wanted rows, wherever they were generated.

    Args:
        rounds: The rows of this process in each round. All processes hold equally many of a round, in rank order.
        wanted: (round, row of that round on all processes) of each row of the batch, in order; their number is a
            multiple of the number of processes.
        world: The processes.
        gather: Joins the lists of all processes. Every process must call it.

    Returns:
        The rows of this process, `len(wanted) / world.size`.
    """
    chosen = set(wanted)
    here: dict[tuple[int, int], Any] = {}
    for number, rows in enumerate(rounds):
        first = world.local_slice(len(rows)).start
        here |= {(number, first + i): row for i, row in enumerate(rows) if (number, first + i) in chosen}
    everywhere = dict(gather([*here.items()]))
    return [everywhere[place] for place in wanted[world.local_slice(len(wanted) // world.size)]]
