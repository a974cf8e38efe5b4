"""bf16 on a CPU: as quick as float32 or quicker where the CPU has instructions for it, and very slow where not."""

import logging
from typing import Any

logger = logging.getLogger(__name__)


def is_bf16_slow() -> bool:
    """Return whether this CPU lacks the instructions, such as AVX-512, that torch needs to be quick in bf16.

    False where torch cannot tell, as in builds without oneDNN.
    """
    import torch

    try:
        return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    except (AttributeError, RuntimeError):
        return False


def warn_of_slow_bf16(model: Any, device: Any, *, weights: str, autocast: str | None = None) -> None:
    """Warn of a model that computes in bf16 on a CPU that is slow in it.

    Args:
        model: The model.
        device: The torch.device that computes. The model may be elsewhere: before a training, FSDP's is on the CPU.
        weights: The setting that loads its weights in float32.
        autocast: The setting that switches bf16 autocast off; None: it is off.
    """
    import torch

    wanted = [autocast] if autocast else []
    if model.dtype == torch.bfloat16:
        wanted.append(weights)
    if wanted and device.type == "cpu" and is_bf16_slow():
        logger.warning(
            "bf16 is many times slower than float32 on this CPU, which has no instructions for it. Set %s.",
            " and ".join(wanted),
        )
