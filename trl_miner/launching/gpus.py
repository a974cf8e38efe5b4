"""The GPUs that this machine offers, and the names by which CUDA knows them."""

import os
from collections.abc import Sequence


def visible_ids(num_gpus: int | None = None) -> list[str]:
    """Return the names of the GPUs, or of `num_gpus` planned ones: from CUDA_VISIBLE_DEVICES, else 0, 1, ..."""
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
