"""The machine that a recipe is checked against: this one, or one that is only described."""

import json
import os
import re
import socket
import urllib.request
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

GIB = 2**30
USABLE = 0.985  # of the memory that a GPU is sold with: the driver keeps the rest


@dataclass(frozen=True)
class Gpu:
    """One GPU; both sizes in bytes."""

    name: str
    total: int
    free: int


@dataclass(frozen=True)
class Machine:
    """What a run finds. None: not known.

    Attributes:
        name: What to call it.
        gpus: The visible ones.
        cpu_memory: In bytes, what is free of it.
        is_here: False: it is only described, so that its ports, files and packages cannot be looked at.
        disk_free: In bytes, where the runs go; None: look.
        versions: Of packages, by name; None: look.
    """

    name: str
    gpus: tuple[Gpu, ...]
    cpu_memory: int | None
    is_here: bool = True
    disk_free: int | None = None
    versions: dict[str, str] | None = field(default=None)

    def version(self, package: str) -> str | None:
        """Of an installed package; None: it is not installed."""
        if self.versions is not None:
            return self.versions.get(package)
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None


def this_machine() -> Machine:
    """The GPUs, the memory and the packages that are here."""
    import torch

    gpus = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        gpus.append(Gpu(torch.cuda.get_device_name(index), total, free))
    return Machine("this machine", tuple(gpus), _cpu_memory())


def _cpu_memory() -> int | None:
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def hub_answers(seconds: float = 3.0) -> bool:
    """Whether somebody listens where the Hub is; without it, each look-up there would be tried for half a minute."""
    if urllib.request.getproxies():
        return True  # which knows better
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout=seconds).close()
    except (OSError, ValueError):
        return False
    return True


def described(text: str) -> Machine:
    """A machine that is not here.

    Args:
        text: `8x80GB`, `0` for none, or a JSON file such as {"gpus": 8, "gpu_memory_gb": 80, "cpu_memory_gb": 1000,
            "disk_free_gb": 4000, "versions": {"trl": "1.16.0"}}; `gpu_memory_gb` may be a list. GB as GPUs are sold:
            2^30 bytes.

    Raises:
        ValueError: Neither.
    """
    if text.endswith(".json"):
        return _from_json(Path(text))
    found = re.fullmatch(r"(\d+)(?:\s*[x×*]\s*(\d+(?:\.\d+)?)\s*(?:gb|gib|g)?)?", text.strip(), re.IGNORECASE)
    if not found or (found[2] is None and int(found[1])):
        raise ValueError(f"--machine must be COUNTxMEMORY, such as 8x80GB, or a .json file: got {text!r}.")
    count, size = int(found[1]), float(found[2] or 0)
    name = f"{count} x {size:g} GB" if count else "no GPU"
    return Machine(f"{name} (described, not here)", _gpus([size] * count), None, is_here=False)


def _from_json(path: Path) -> Machine:
    if not path.is_file():
        raise ValueError(f"--machine must name a file that is there: got {path}.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be JSON: {error}.") from error
    known = {"name", "gpus", "gpu_memory_gb", "cpu_memory_gb", "disk_free_gb", "versions"}
    if not isinstance(found, dict) or not found.keys() <= known:
        raise ValueError(f"{path} must be a mapping with some of {', '.join(sorted(known))}: got {str(found)[:80]}.")
    sizes = found.get("gpu_memory_gb", [])
    try:
        sizes = [float(size) for size in (sizes if isinstance(sizes, list) else [sizes] * int(found.get("gpus", 0)))]
        cpu, disk = (
            None if found.get(key) is None else int(float(found[key]) * GIB)
            for key in ("cpu_memory_gb", "disk_free_gb")
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} must give counts and sizes as numbers: {error}.") from error
    if len(sizes) != int(found.get("gpus", len(sizes))):
        raise ValueError(f"{path} must give a size for each GPU: got gpus={found.get('gpus')} and {len(sizes)} sizes.")
    name = f"{found.get('name', path.stem)} (described, not here)"
    return Machine(name, _gpus(sizes), cpu, is_here=False, disk_free=disk, versions=found.get("versions"))


def _gpus(sizes: list[float]) -> tuple[Gpu, ...]:
    usable = [int(size * GIB * USABLE) for size in sizes]
    return tuple(Gpu(f"{size:g} GB", total, total) for size, total in zip(sizes, usable, strict=True))
