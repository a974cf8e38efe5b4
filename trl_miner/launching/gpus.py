"""The GPUs that this machine offers, and the names by which CUDA knows them."""

import os
from collections.abc import Sequence


def visible_ids(num_gpus: int | None = None) -> list[str]:
    """Return the GPUs by their names in CUDA_VISIBLE_DEVICES: the user's own if that is set, else 0, 1, ...

    Args:
        num_gpus: Number of GPUs to plan for, instead of those that are visible here.

    Raises:
        ValueError: `num_gpus` is negative.
    """
    listed = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if num_gpus is None:
        import torch

        num_gpus = torch.cuda.device_count()
    if num_gpus < 0:
        raise ValueError(f"num_gpus must be at least 0: got {num_gpus}. Give the number of GPUs of each machine.")
    if len(listed) < num_gpus:  # the variable is not set, or the plan is for another machine
        return [str(index) for index in range(num_gpus)]
    return listed[:num_gpus]


def visible_devices(ids: Sequence[str], chosen: Sequence[int]) -> dict[str, str]:
    """Return the environment in which a process sees only the chosen GPUs; empty if it may see all."""
    if len(chosen) == len(ids):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(ids[index] for index in chosen)}
