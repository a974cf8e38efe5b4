"""The vLLM server of a recipe: its address, ports and command, and what it answers."""

import argparse
import contextlib
import json
import random
import shlex
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import requests

from ..common.errors import RunEnded

ANYWHERE = ("", "0.0.0.0", "::")
ANSWER_SECONDS = 5.0  # to wait for a server's answer
# without an answer of a server or process until a run ends, unless watchdog_seconds is set
GONE_SECONDS = 300.0
LOGPROBS_FLAG = "--logprobs-mode processed_logprobs"  # log-probs at the temperature of the sampling


def server_address(settings: argparse.Namespace) -> tuple[str, int]:
    """Return host and port of the server that a recipe names. As in TRL, the base URL wins over
    host and port."""
    if not settings.vllm_server_base_url:
        port = int(settings.vllm_server_port)
        if not 0 < port < 65_536:
            raise ValueError(
                f"vllm_server_port must be between 1 and 65535: got {port}. 8000 is the default."
            )
        return settings.vllm_server_host, port
    with contextlib.suppress(ValueError):  # of a port that is none
        url = urlsplit(settings.vllm_server_base_url)
        if url.hostname:
            return url.hostname, url.port or (443 if url.scheme == "https" else 80)
    raise ValueError(
        "vllm_server_base_url must be an address with http:// in front: got"
        f" {settings.vllm_server_base_url}. Write http://HOST:PORT."
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host of this name."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_here(host: str) -> bool:
    """Return whether a host name means this machine."""
    return host in ANYWHERE or is_loopback(host) or host == socket.gethostname()


def server_url(host: str, port: int) -> str:
    """Return the address for a client. A server that listens everywhere is addressed on
    loopback."""
    host = "127.0.0.1" if host in ANYWHERE else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def ask(url: str, path: str, timeout: float) -> str | None:
    """Return the text of GET url/path, or None unless it comes with status 200, each part within
    `timeout` seconds."""
    session = requests.Session()
    # a proxy for the outside world would not find a server of this cluster
    session.trust_env = False
    try:
        with session.get(
            f"{url.rstrip('/')}/{path}", timeout=timeout, allow_redirects=False
        ) as answer:
            # a dead engine answers 503
            return answer.content.decode("utf-8", "replace") if answer.status_code == 200 else None
    except (requests.RequestException, ValueError):
        return None


def served_at(args: Any) -> str | None:
    """Return the address of the vLLM server that a training uses; None: it uses none."""
    if not (args.use_vllm and args.vllm_mode == "server"):
        return None
    return str(
        args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
    )


def wait_for_server(args: Any) -> None:
    """Wait until a training's vLLM server is healthy. TRL would wait forever for one that takes a
    connection and gives no answer, or only that it is not.

    Raises:
        RunEnded: It was not within `vllm_server_timeout`.
    """
    url, start = served_at(args), time.monotonic()
    while url is not None and ask(url, "health", ANSWER_SECONDS) is None:
        if time.monotonic() - start > args.vllm_server_timeout:
            raise RunEnded(
                f"The vLLM server at {url} was not healthy within {args.vllm_server_timeout:g} s"
                " (vllm_server_timeout). Look at its log, or raise the limit."
            )
        time.sleep(1)


def logprobs_mode(url: str, timeout: float = ANSWER_SECONDS) -> str | None:
    """Return a running server's `--logprobs-mode`; None if it does not say, as outside of vLLM's
    development mode."""
    info = ask(url, "server_info?config_format=json", timeout)
    try:
        mode = json.loads(info or "")["vllm_config"]["model_config"]["logprobs_mode"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return mode if isinstance(mode, str) else None


def wrong_logprobs(url: str, mode: str, temperature: float) -> str | None:
    """Return why a server's log-probs are not those of the distribution that it samples from; None:
    they are."""
    if mode == "processed_logprobs" or (mode == "raw_logprobs" and temperature == 1):
        return None
    return (
        f"the vLLM server's log-probs must be the policy's at temperature {temperature:g}: got"
        f" {mode} from {url}. Start it with {LOGPROBS_FLAG}, as trl-miner launch does."
    )


def server_command(
    settings: argparse.Namespace,
    model: str,
    host: str,
    port: int,
    *,
    copies: int,
    memory: float,
    flags: str,
) -> list[str]:
    """Return the command of vLLM's own server with so many copies of the model, the flags that TRL
    1.16 imposes, and those of the user."""
    from trl.scripts.vllm_serve import ScriptArguments, build_command

    arguments = ScriptArguments(
        model=model,
        revision=None if settings.model_revision == "main" else settings.model_revision,
        tensor_parallel_size=settings.vllm_tensor_parallel_size,
        data_parallel_size=copies,
        host=host,
        port=port,
        gpu_memory_utilization=memory,
        dtype="float16" if settings.fp16 else "float32" if settings.bf16 is False else "bfloat16",
        max_model_len=settings.vllm_max_model_length,
        vllm_model_impl=settings.vllm_model_impl,
        trust_remote_code=bool(settings.trust_remote_code),
        # no line for each request: the end of the log should show why the server ended
        log_level="warning",
    )
    try:
        own = shlex.split(flags)
    except ValueError as error:
        raise ValueError(
            f"--server-args must be flags as a shell takes them: got {flags} ({error})."
        ) from error
    return list(build_command(arguments, [*_adapter_flags(settings), *own]))


def _adapter_flags(settings: argparse.Namespace) -> list[str]:
    """Return the flags with which TRL's asynchronous trainer sends the adapter alone: ranks that
    vLLM knows, and a place for each version that a request may still name and for the next."""
    if not (settings.asynchronous and settings.use_peft):
        return []
    from ..trainer.trl_asynchronous import round_lora_rank

    slots = settings.max_staleness + 2
    return [
        "--enable-lora",
        "--max-lora-rank",
        str(round_lora_rank(settings.lora_r)),
        "--max-loras",
        str(slots),
    ]


def server_env(settings: argparse.Namespace) -> dict[str, str]:
    """Return the environment of the server: it enables the endpoints that take the training's
    weights."""
    takes_adapters = settings.asynchronous and settings.use_peft
    return {"VLLM_SERVER_DEV_MODE": "1"} | (
        {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} if takes_adapters else {}
    )


def free_port() -> int:
    """Return a free port of this machine, at random, below those that the system gives to outgoing
    connections."""
    # runs of one seed must not choose the same
    for port in random.SystemRandom().sample(range(20_000, 32_768), 100):
        with contextlib.suppress(OSError):
            _bind("0.0.0.0", port)
            return port
    raise OSError(
        "No port from 20000 to 32767 seems to be free on this machine: 100 of them are in use."
    )


def _bind(host: str, port: int) -> None:
    """Listen at an address for a moment. A server that has just ended does not count as
    listening."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def check_port(host: str, port: int) -> None:
    """Raise ValueError if the vLLM server could not listen at an address."""
    try:
        _bind(host, port)
    except OSError as error:
        raise ValueError(
            f"The vLLM server cannot listen on {host}:{port}: {error.strerror}. End what listens"
            " there, or choose another address of this machine with --host and --vllm_server_port."
        ) from error
