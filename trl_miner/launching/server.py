"""The command of the vLLM server: the flags that TRL imposes, from the settings of a recipe."""

import argparse
import json
import shlex
import socket
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

GPU_MEMORY_UTILIZATION = 0.9  # TRL's for a server; the default of the recipe's setting, 0.3, is for colocation
ANYWHERE = ("", "0.0.0.0", "::")
SERVER_ENV = {"VLLM_SERVER_DEV_MODE": "1"}  # the endpoints for weights lie behind it


def server_address(settings: argparse.Namespace) -> tuple[str, int]:
    """Host and port of the server that a recipe names, base URL before host and port, as TRL reads them."""
    if not settings.vllm_server_base_url:
        return settings.vllm_server_host, int(settings.vllm_server_port)
    parts = urlsplit(settings.vllm_server_base_url)
    if not parts.hostname:
        raise ValueError(
            f"vllm_server_base_url must be an address with http:// in front: got {settings.vllm_server_base_url}."
        )
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def is_loopback(host: str) -> bool:
    """Does the name mean an address that only this machine can reach?"""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_here(host: str) -> bool:
    """Does the name mean the machine that it is read on?"""
    return host in ANYWHERE or is_loopback(host) or host == socket.gethostname()


def server_url(host: str, port: int) -> str:
    """The address for a client on the same machine when the server listens everywhere, else on any."""
    host = "127.0.0.1" if host in ANYWHERE else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def served_dtype(settings: argparse.Namespace) -> str:
    """What the training computes in: GRPOConfig's bf16 is on unless it or fp16 says otherwise."""
    if settings.fp16:
        return "float16"
    return "float32" if settings.bf16 is False else "bfloat16"


def server_command(
    settings: argparse.Namespace,
    model: str,
    host: str,
    port: int,
    *,
    memory: float = GPU_MEMORY_UTILIZATION,
    program: str | None = None,
    extra: Sequence[str] = (),
) -> list[str]:
    """The command of vLLM's own server, as `trl.scripts.vllm_serve.build_command` has it (a test compares them).

    Args:
        settings: Of the recipe.
        model: What to serve: an id or a folder.
        host: Where to listen.
        port: Likewise.
        memory: Share of each GPU's memory, for weights and KV cache.
        program: Stands in front of the flags in the place of `python -m vllm.entrypoints.cli.main serve MODEL`.
        extra: Flags to append.
    """
    default = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model]
    flags: dict[str, Any] = {
        "--host": host,
        "--port": port,
        "--tensor-parallel-size": settings.vllm_tensor_parallel_size,
        "--data-parallel-size": 1,  # more is for mixtures of experts
        "--gpu-memory-utilization": memory,
        "--dtype": served_dtype(settings),
        "--kv-cache-dtype": "auto",
        "--model-impl": settings.vllm_model_impl,
        "--uvicorn-log-level": "warning",  # no line for each request: the last lines of the log are to say something
        "--revision": None if settings.model_revision == "main" else settings.model_revision,
        "--max-model-len": settings.vllm_max_model_length,
    }
    command = shlex.split(program) if program else default
    for name, value in flags.items():
        command += [] if value is None else [name, str(value)]
    command += ["--trust-remote-code"] if settings.trust_remote_code else []
    command += ["--enable-scale-out"] if _has_scale_out() else []
    # the sampler's log-probs are to include the temperature, which the trainer compares them with
    command += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
    command += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    return command + list(extra)


def _has_scale_out() -> bool:
    from trl.import_utils import is_vllm_available

    try:
        return is_vllm_available(min_version="0.30.0")
    except TypeError:  # a TRL that knows no such vLLM
        return False
