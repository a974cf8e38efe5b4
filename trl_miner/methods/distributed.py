"""The processes that share a batch. The mathematics asks a `World` for what is global and knows
nothing else of them.

# N = rows of the global batch, B = rows of this process, N = size * B, in rank order
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 renamed it and warns about the old name
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


T = TypeVar("T")


def decided_by_one(decide: Callable[[], T]) -> T:
    """Return what `decide` returns on the main process. What it raises there, every process raises:
    each must call."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    decided: list[Any] = [None, None]
    failure: Exception | None = None
    if PartialState().is_main_process:
        try:
            decided[0] = decide()
        except Exception as error:  # the others wait
            failure, decided[1] = error, str(error)
    broadcast_object_list(decided)
    if decided[1] is not None:
        raise failure or ValueError(decided[1])
    return decided[0]


class World:
    """The processes of the default `torch.distributed` group (gloo, NCCL); without one, this
    process alone."""

    def __init__(self, size: int = 1, rank: int = 0) -> None:
        self.size, self.rank = size, rank

    def gather(self, values_B: Tensor) -> Tensor:
        """(B, ...) -> (N, ...): the rows of every process in rank order. Every process calls it,
        with one shape."""
        if self.size == 1:
            return values_B
        values_B = values_B.contiguous()
        values_N = values_B.new_empty((self.size * values_B.shape[0], *values_B.shape[1:]))
        _all_gather(values_N, values_B)
        return values_N

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum over the processes. Every process calls it, with one shape."""
        if self.size == 1:
            return value
        total = value.clone()
        dist.all_reduce(total)
        return total

    def exchange(self, items_W: Sequence[list[Any]], device: torch.device) -> list[Any]:
        """Return what the processes have for this one, in their order, of the items that each has for
        each. Nothing goes through a process that does not want it. Every process calls it."""
        sent = [
            b"" if rank == self.rank else pickle.dumps(items) for rank, items in enumerate(items_W)
        ]
        if self.size == 1:
            return [*items_W[0]]
        sizes_W = torch.tensor([len(data) for data in sent], device=device)
        sizes_of_others_W = torch.empty_like(sizes_W)
        dist.all_to_all_single(sizes_of_others_W, sizes_W)
        data = torch.frombuffer(bytearray(b"".join(sent)) or bytearray(1), dtype=torch.uint8)
        data = data[: sum(map(len, sent))].to(device)
        sizes = sizes_of_others_W.tolist()
        received = data.new_empty(sum(sizes))
        dist.all_to_all_single(
            received, data, output_split_sizes=sizes, input_split_sizes=sizes_W.tolist()
        )
        parts = [part.cpu().numpy().tobytes() for part in received.split(sizes)]
        by_rank = [pickle.loads(part) if part else [] for part in parts]
        by_rank[self.rank] = items_W[self.rank]
        return [item for items in by_rank for item in items]

    def all(self, condition: bool, device: torch.device) -> bool:
        """Return whether a condition holds on every process: a branch around a collective needs it.
        Every process calls it."""
        return int(self.sum(torch.tensor(int(not condition), device=device))) == 0

    def local_slice(self, num_local_rows: int) -> slice:
        """Return where this process's B rows, `num_local_rows`, stand in the global N."""
        return slice(self.rank * num_local_rows, (self.rank + 1) * num_local_rows)


def current_world() -> World:
    """The world this process was launched into."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_world_size(), dist.get_rank())
    return World()


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """Return float64, because sums over millions of tokens lose digits in float32; MPS has no
    other."""
    return torch.float32 if device.type == "mps" else torch.float64
