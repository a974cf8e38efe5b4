"""Whether the Hub can be reached: asked once, before the libraries that would retry each file."""

import os
import socket
import sys
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

OFFLINE = "HF_HUB_OFFLINE"
_SECONDS = 4.0


def go_offline_without_network(*, quiet: bool = False) -> None:
    """Set HF_HUB_OFFLINE for this process and those that it starts, if the Hub cannot be reached.

    Hugging Face's libraries read it when they are imported, so that this comes before. A value that
    the user has set stays.
    """
    if OFFLINE in os.environ:
        return
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    host = endpoint.hostname or ""
    if (proxy := getproxies().get(endpoint.scheme)) and not proxy_bypass(host):
        endpoint = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if _answers(endpoint.hostname or "", endpoint.port or socket.getservbyname(endpoint.scheme)):
        return
    os.environ[OFFLINE] = "1"
    if not quiet:
        print(
            f"note: {host} cannot be reached: of models and data sets of the Hub only those in the"
            f" cache can be used ({OFFLINE}=1).",
            file=sys.stderr,
            flush=True,
        )


def _answers(host: str, port: int) -> bool:
    """Return whether a port takes a connection. A name server that is not there takes its time."""
    answered = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=_SECONDS).close()
        except OSError:
            return
        answered.set()

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return answered.is_set()
