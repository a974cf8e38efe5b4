"""Which processes a recipe needs, and which GPUs each of them sees: one function, `make_plan`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Process:
    """A command, with what is set on top of its environment."""

    command: list[str]
    env: dict[str, str]


@dataclass(frozen=True)
class Plan:
    """The processes of a run on one machine, and the GPUs of each."""

    server: Process | None  # vLLM's; None: colocated, elsewhere, or not used
    train: Process | None  # None: only the server is started
    server_gpus: int
    train_gpus: int
    processes: int  # of the training
    server_url: str | None  # where the training finds the server
    notes: list[str]  # for the user


def make_plan(
    path: Path | None,
    settings: Mapping[str, Any],
    words: Sequence[str],
    gpus: Sequence[str],
    *,
    only: str | None = None,
    host: str | None = None,
    server_args: str = "",
) -> Plan:
    """Plan a recipe: the server on the first `vllm_tensor_parallel_size` GPUs, the training on the
    others."""
    raise NotImplementedError
