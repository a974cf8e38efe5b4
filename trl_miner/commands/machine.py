"""The GPUs of this machine, or of one that `--machine` describes: for launch and doctor."""

import argparse
import os
import re

GIB = 2**30


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Declare `--machine`."""
    parser.add_argument(
        "--machine", metavar="MACHINE", help="GPUs of another machine, such as 8x80GB."
    )


def gpus_of(machine: str | None) -> dict[str, int]:
    """Return the free bytes of each GPU by its name: of a machine such as 8x80GB, or of this one.

    Raises:
        ValueError: The description is none.
    """
    if machine is not None:
        found = re.fullmatch(r"(\d+)x(\d+)GB", machine)
        if not found:
            raise ValueError(f"--machine must be like 8x80GB: got {machine!r}.")
        count, size = map(int, found.groups())
        # the driver keeps some, and smaller cards have less than they are called: 24 GB are 22 GiB
        usable = int(size * GIB * (0.985 if size > 48 else 0.917))
        return dict.fromkeys(map(str, range(count)), usable)
    import torch

    count = torch.cuda.device_count()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = named if len(named) == count else [*map(str, range(count))]
    return {name: torch.cuda.mem_get_info(place)[0] for place, name in enumerate(names)}
