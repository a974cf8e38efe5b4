"""The machine that a recipe is checked against: this one, or a described one."""

import os
import re
import socket
import urllib.request
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from ..runs.files import parse

GIB = 2**30
USABLE = 0.985  # share of the memory that a GPU is sold with; the driver keeps the rest


@dataclass(frozen=True)
class Gpu:
    """The memory of a GPU, in bytes."""

    total: int
    free: int


@dataclass(frozen=True)
class Machine:
    """The resources of a machine. None means not known, or of this machine not looked up yet."""

    name: str
    gpus: tuple[Gpu, ...]  # the visible ones
    cpu_memory: int | None  # free, in bytes
    is_here: bool = True  # ports, files and packages of a described machine cannot be checked
    disk_free: int | None = None  # for runs, in bytes
    versions: dict[str, str] | None = None  # of packages, by name

    def version(self, package: str) -> str | None:
        """Return the version of a package, or None if it is not installed."""
        if self.versions is not None:
            return self.versions.get(package)
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None


def this_machine() -> Machine:
    """Return this machine, with its GPUs and its memory."""
    import torch

    memory = (torch.cuda.mem_get_info(index) for index in range(torch.cuda.device_count()))
    gpus = tuple(Gpu(total, free) for free, total in memory)
    return Machine("this machine", gpus, psutil.virtual_memory().available)


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


def described_machine(text: str) -> Machine:
    """Return a machine by its description: `8x80GB`, `0` for no GPU, or a JSON file. A GB is 2^30 bytes."""
    if text.endswith(".json"):
        return _from_json(Path(text))
    match = re.fullmatch(r"(\d+)(?:\s*[x×*]\s*(\d+(?:\.\d+)?)\s*(?:gb|gib|g)?)?", text.strip(), re.IGNORECASE)
    if not match or (match[2] is None and int(match[1])):
        raise ValueError(f"--machine must be COUNTxMEMORY, such as 8x80GB, or a .json file: got {text!r}.")
    count, size = int(match[1]), float(match[2] or 0)
    name = f"{count} x {size:g} GB" if count else "no GPU"
    return Machine(f"{name} (described, not here)", _gpus([size] * count), None, is_here=False)


def _from_json(path: Path) -> Machine:
    if not path.is_file():
        raise ValueError(f"--machine must name an existing file: got {path}. Or give COUNTxMEMORY, such as 8x80GB.")
    try:
        given = parse(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} must be JSON: {error}. See trl-miner doctor --help.") from error
    known = {"name", "gpus", "gpu_memory_gb", "cpu_memory_gb", "disk_free_gb", "versions"}
    if not isinstance(given, dict) or not given.keys() <= known:
        raise ValueError(f"{path} must be a mapping with some of {', '.join(sorted(known))}: got {str(given)[:80]}.")
    sizes = given.get("gpu_memory_gb", [])
    try:
        count = int(given.get("gpus", len(sizes) if isinstance(sizes, list) else 0))
        sizes = [float(size) for size in (sizes if isinstance(sizes, list) else [sizes] * count)]
        cpu, disk = (
            None if given.get(key) is None else int(float(given[key]) * GIB)
            for key in ("cpu_memory_gb", "disk_free_gb")
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path} must give counts and sizes as numbers: {error}.") from error
    if len(sizes) != count:
        raise ValueError(f"{path} must give a size for each GPU: got gpus={count} and {len(sizes)} sizes.")
    name = f"{given.get('name', path.stem)} (described, not here)"
    return Machine(name, _gpus(sizes), cpu, is_here=False, disk_free=disk, versions=given.get("versions"))


def _gpus(sizes: list[float]) -> tuple[Gpu, ...]:
    return tuple(Gpu(usable, usable) for usable in (int(size * GIB * USABLE) for size in sizes))
