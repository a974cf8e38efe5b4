"""Training on a CPU: one thread for small models, as more would mostly wait for each other; memory
that is kept from one tensor to the next; and bf16 that is slow.

With two threads on two cores, a forward of a model of 0.1 to 28 million parameters took 6 to 81
times as long as with one while other processes used the cores (medians). One thread and two gave
the same logits and gradients, bit for bit, with models of 0.1 to 6.6 million parameters.

glibc asks the system for each large tensor and gives it back, so that its pages are zeroed again and
again. With the thresholds below, the first run of the README took 0.85 of the CPU time, with the
same results, and 3 % more memory at its peak.
"""

import contextlib
import ctypes
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

SMALL = 10_000_000  # parameters
MOST_ON_HEAP = 32 * 2**20  # glibc takes no more
MOST_KEPT = 512 * 2**20
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
CLEARLY_SLOWER = 1.3  # of times that scatter

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def tuned_for_cpu(model: Any) -> Iterator[None]:
    """Run a small model on one CPU thread within the block, and any model on a CPU with memory that
    the process keeps from now on."""
    import torch

    threads = torch.get_num_threads()
    if model.device.type == "cpu":
        keep_memory()
    if model.device.type == "cpu" and sum(weight.numel() for weight in model.parameters()) <= SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def keep_memory() -> None:
    """Have glibc keep freed memory of up to `MOST_KEPT` bytes at the end of its heap, and take
    tensors of up to `MOST_ON_HEAP` from there. Other C libraries stay as they are."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, MOST_ON_HEAP)
        set_option(_TRIM_THRESHOLD, MOST_KEPT)


def warn_of_slow_bf16(accelerator: Any) -> None:
    """Warn of a training in bf16 on a CPU that is slower in it: 1.8 times on an Intel Xeon with
    AVX-512 and no AMX."""
    import torch

    if accelerator.mixed_precision != "bf16" or accelerator.device.type != "cpu":
        return
    ratio = product_seconds(torch.bfloat16) / product_seconds(torch.float32)
    if ratio > CLEARLY_SLOWER:
        logger.warning(
            f"bf16 takes {ratio:.1f} times as long as float32 on this CPU. Set bf16: false."
        )


def product_seconds(dtype: Any) -> float:
    """Return how long a product of two matrices of 512 x 512 takes at best, in seconds."""
    import torch

    matrix, times = torch.ones(512, 512, dtype=dtype), []
    for _ in range(6):  # the first prepares
        start = time.perf_counter()
        torch.nn.functional.linear(matrix, matrix)
        times.append(time.perf_counter() - start)
    return min(times)
