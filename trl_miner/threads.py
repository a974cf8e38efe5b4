"""The threads of small models on a CPU: one, as more would mostly wait for each other.

With two threads on two cores, a forward of a model of 0.1 to 28 million parameters took 6 to 81 times as long as with
one while other processes used the cores (medians). One thread and two gave the same logits and gradients, bit for bit,
with models of 0.1 to 6.6 million parameters.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

SMALL = 10_000_000  # parameters
# Says that nobody asked for the number in OMP_NUM_THREADS: accelerate always sets one.
NOT_ASKED = "TRL_MINER_THREADS_NOT_ASKED"


@contextlib.contextmanager
def fitting_threads(model: Any) -> Iterator[None]:
    """Run a small model on one CPU thread within the block, unless the user has set OMP_NUM_THREADS."""
    import torch

    threads = torch.get_num_threads()
    is_asked = "OMP_NUM_THREADS" in os.environ and NOT_ASKED not in os.environ
    size = sum(weight.numel() for weight in model.parameters())
    if is_asked or threads == 1 or size > SMALL or model.device.type != "cpu":
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
