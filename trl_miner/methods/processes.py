"""The processes that share a batch. A method asks a `World` for what is global, and knows nothing
else of them.

# N = rows of the global batch, B = rows of this process, N = size * B, in rank order
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 renamed it and warns about the old name
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class World:
    """The processes of the default `torch.distributed` group (gloo, NCCL); without one, this
    process alone. Every process must call each method, with a tensor of the same shape."""

    size: int = 1
    rank: int = 0

    def gather(self, values_B: Tensor) -> Tensor:
        """(B, ...) -> (N, ...): the rows of all processes in rank order."""
        if self.size == 1:
            return values_B
        values_N = torch.cat([values_B] * self.size)
        _all_gather(values_N, values_B.contiguous())
        return values_N

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum over the processes."""
        return self.gather(value[None]).sum(dim=0)

    def local_slice(self, num_local_rows: int) -> slice:
        """Return where this process's B rows stand in the global N. (Needs no other process.)"""
        return slice(self.rank * num_local_rows, (self.rank + 1) * num_local_rows)


def current_world() -> World:
    """Return the world that this process was launched into."""
    if dist.is_initialized():
        return World(dist.get_world_size(), dist.get_rank())
    return World()


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """Return float64: sums over millions of tokens lose digits in float32. MPS has nothing wider."""
    return torch.float32 if device.type == "mps" else torch.float64
