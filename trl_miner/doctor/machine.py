"""The machine that a recipe is checked against: this one, or a described one."""

import os
import re
import socket
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

GIB = 2**30
USABLE = 0.985  # share of the memory that a GPU is sold with; the driver keeps the rest


@dataclass(frozen=True)
class Machine:
    """The resources of a machine."""

    name: str
    gpus: tuple[int, ...]  # free bytes of each that is visible
    cpu_memory: int | None  # free bytes; None: not known
    is_here: bool = True  # files and packages of a described machine cannot be checked


def this_machine() -> Machine:
    """Return this machine, with its GPUs and its memory."""
    import torch

    gpus = tuple(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))
    return Machine("this machine", gpus, psutil.virtual_memory().available)


def described_machine(text: str) -> Machine:
    """Return a machine by its description: `8x80GB`, or `0` for no GPU. A GB is 2^30 bytes."""
    match = re.fullmatch(r"(\d+)(?:\s*[x×*]\s*(\d+(?:\.\d+)?)\s*(?:gb|gib|g)?)?", text.strip(), re.IGNORECASE)
    if not match or (match[2] is None and int(match[1])):
        raise ValueError(f"--machine must be COUNTxMEMORY, such as 8x80GB, or 0 for no GPU: got {text!r}.")
    count, size = int(match[1]), float(match[2] or 0)
    name = f"{count} x {size:g} GB" if count else "no GPU"
    return Machine(f"{name} (described, not here)", (int(size * GIB * USABLE),) * count, None, is_here=False)


def hub_answers(seconds: float = 3.0) -> bool:
    """Return whether the Hub can be reached. If not, every request to it would be retried for half a minute."""
    if urllib.request.getproxies():
        return True  # let the proxy decide
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout=seconds).close()
    except (OSError, ValueError):
        return False
    return True
