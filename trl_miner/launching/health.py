"""Asks a vLLM server for its health, in a thread: no answer must not keep `launch` from seeing anything else."""

import errno
import http.client
import socket
import threading
import time
import urllib.request

ANSWER_SECONDS = 10.0  # for one question; a server that is hard at work may take some
STARTING_SECONDS = 0.5  # between two questions until it is up
# The server is on this machine or in this cluster; a proxy for the outer world would not find it.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, path: str, timeout: float) -> str | None:
    """The text that GET url/path gives with status 200 within `timeout` seconds, or None."""
    try:
        with _OPENER.open(f"{url.rstrip('/')}/{path}", timeout=timeout) as answer:
            return answer.read().decode("utf-8", "replace") if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):  # an engine that has died answers 503, an OSError
        return None


def is_healthy(url: str, timeout: float) -> bool:
    """Does GET url/health give 200 within `timeout` seconds?"""
    return ask(url, "health", timeout) is not None


class Health:
    """Keeps asking until `stop`.

    Args:
        url: Of the server.
        interval: Seconds between two questions, once the server has been healthy.
        patience: Seconds to wait for an answer, at most `ANSWER_SECONDS`.
    """

    def __init__(self, url: str, interval: float, patience: float = ANSWER_SECONDS) -> None:
        self.url, self.interval, self.patience = url, interval, min(patience, ANSWER_SECONDS)
        self.was_good = False
        self._failing_since: float | None = None
        self._stopped = threading.Event()
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        while not self._stopped.is_set():
            asked = time.monotonic()
            if is_healthy(self.url, self.patience):
                self.was_good, self._failing_since = True, None
            elif self._failing_since is None:
                self._failing_since = asked
            self._stopped.wait(self.interval if self.was_good else min(self.interval, STARTING_SECONDS))

    def silence(self) -> float:
        """Seconds since the first of the questions in a row that got no good answer; 0 when the last one got it. (Not
        since the last good answer: a launch that was stopped for an hour has not asked, and must ask first.)
        """
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()


def is_port_free(port: int) -> bool:
    """Could something on this machine listen there? Ports that have only just been left count as free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def check_port(host: str, port: int) -> None:
    """Raise when the server could not listen there.

    Raises:
        ValueError: The port is taken, or the host is not this machine.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that has just ended is no obstacle
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"The vLLM server's port must be free: got {port} on {host}, where another process listens. End it, "
                f"or choose another with --vllm_server_port."
            ) from error
        raise ValueError(
            f"The vLLM server must listen on an address of this machine: got {host}:{port} ({error}). Give another "
            f"with --host and --vllm_server_port."
        ) from error
    resolved = str(address[0])
    if resolved.startswith("127.") and not (host.startswith("127.") or host == "localhost"):
        raise ValueError(
            f"The vLLM server's host must be what other machines reach it by: got {host}, which is {resolved} here. "
            f"Give this machine's address with --host."
        )
