"""Training on a CPU: one thread for small models, as more would mostly wait for each other; and bf16 that is slow.

With two threads on two cores, a forward of a model of 0.1 to 28 million parameters took 6 to 81 times as long as with
one while other processes used the cores (medians). One thread and two gave the same logits and gradients, bit for bit,
with models of 0.1 to 6.6 million parameters.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

SMALL = 10_000_000  # parameters

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def fitting_threads(model: Any) -> Iterator[None]:
    """Run a small model on one CPU thread within the block."""
    import torch

    threads = torch.get_num_threads()
    if model.device.type == "cpu" and sum(weight.numel() for weight in model.parameters()) <= SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def warn_of_slow_bf16(accelerator: Any) -> None:
    """Warn of a training in bf16 on a CPU that lacks the instructions, such as AVX-512, for which it is quick."""
    import torch

    if accelerator.mixed_precision != "bf16" or accelerator.device.type != "cpu":
        return
    # the operator is not there in builds without oneDNN
    if torch.backends.mkldnn.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        logger.warning("bf16 is many times slower than float32 on this CPU. Set bf16: false.")
