"""Ask a vLLM server for its health, and which ports are free."""

import errno
import random
import socket
import threading
import time

import requests

ANSWER_SECONDS = 10.0  # to wait for one answer: a busy server may be slow
STARTING_SECONDS = 0.5  # between two requests until the server is up


def ask(url: str, path: str, timeout: float) -> str | None:
    """Return the text of GET url/path, or None unless it comes with status 200, each part within `timeout` seconds."""
    session = requests.Session()
    session.trust_env = False  # a proxy for the outside world would not find a server of this cluster
    try:
        with session.get(f"{url.rstrip('/')}/{path}", timeout=timeout, allow_redirects=False) as answer:
            return (
                answer.content.decode("utf-8", "replace") if answer.status_code == 200 else None
            )  # a dead engine answers 503
    except (requests.RequestException, ValueError):
        return None


class HealthMonitor:
    """Asks a server for its health every `interval` seconds, in a thread that a missing answer may block."""

    def __init__(self, url: str, interval: float, patience: float = ANSWER_SECONDS) -> None:
        self.url, self.interval, self.patience = url, interval, min(patience, ANSWER_SECONDS)
        self.has_been_healthy = False
        self._failing_since: float | None = None
        self._stopped = threading.Event()
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        while not self._stopped.is_set():
            asked = time.monotonic()
            if ask(self.url, "health", self.patience) is not None:
                self.has_been_healthy, self._failing_since = True, None
            elif self._failing_since is None:
                self._failing_since = asked
            self._stopped.wait(self.interval if self.has_been_healthy else min(self.interval, STARTING_SECONDS))

    def silence(self) -> float:
        """Return the seconds since the first of the latest failed requests; 0 if the last one succeeded.

        Not since the last good answer: a launch that was itself stopped for an hour has not asked for an hour.
        """
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    def stop(self) -> None:
        """Stop asking."""
        self._stopped.set()


def is_port_free(port: int) -> bool:
    """Return whether a server could listen on a port of this machine."""
    try:
        _bind("0.0.0.0", port)
    except OSError:
        return False
    return True


def free_port() -> int:
    """Return a free port of this machine, at random, below those that the system gives to outgoing connections."""
    ports = random.SystemRandom().sample(range(20_000, 32_768), 100)  # runs of one seed must not choose the same
    free = next((port for port in ports if is_port_free(port)), None)
    if free is None:
        raise OSError("No port from 20000 to 32767 seems to be free on this machine: 100 of them are in use.")
    return free


def _bind(host: str, port: int) -> str:
    """Listen at an address for a moment, and return it. A server that has just ended does not count as listening."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
    return str(address[0])


def check_port(host: str, port: int) -> None:
    """Raise if the vLLM server could not listen at an address."""
    try:
        resolved = _bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"The vLLM server's port must be free: got {port} on {host}, where another process listens. End it, "
                f"or choose another port with --vllm_server_port."
            ) from error
        raise ValueError(
            f"The vLLM server must listen on an address of this machine: got {host}:{port} ({error}). Choose another "
            f"one with --host and --vllm_server_port."
        ) from error
    if resolved.startswith("127.") and not (host.startswith("127.") or host == "localhost"):
        raise ValueError(
            f"The vLLM server's host must be an address that other machines can reach: got {host}, which is "
            f"{resolved} here. Give this machine's address with --host."
        )
