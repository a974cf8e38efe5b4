"""Which GPUs this machine offers, and by what names CUDA knows them."""

import os
from collections.abc import Sequence


def visible_ids(num_gpus: int | None = None) -> list[str]:
    """The names of the GPUs as CUDA_VISIBLE_DEVICES takes them: the user's own where that is set, else 0, 1, ...

    Args:
        num_gpus: Plan for so many instead of those that are here.

    Raises:
        ValueError: A negative number.
    """
    listed = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if num_gpus is None:
        import torch

        num_gpus = torch.cuda.device_count()
    if num_gpus < 0:
        raise ValueError(f"num_gpus must be at least 0: got {num_gpus}.")
    if len(listed) < num_gpus:  # not set, or a plan for another machine
        return [str(index) for index in range(num_gpus)]
    return listed[:num_gpus]


def visible_devices(ids: Sequence[str], chosen: Sequence[int]) -> dict[str, str]:
    """What to set so that a process sees the chosen GPUs only; nothing when it may see all."""
    if len(chosen) == len(ids):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(ids[index] for index in chosen)}
