"""Whether the Hub can be reached: asked once, before the libraries that would retry each file."""

import os
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from .errors import first_line
from .importing import did_you_mean

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


# behind `not_loaded`, of a model to train
MADE_BY_SFT = "If the recipe says that `trl-miner sft` makes it, run that first."


def is_offline() -> bool:
    """Return whether the Hub is not to be asked, as Hugging Face's libraries see it."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def is_path(name: str) -> bool:
    """Return whether a name is one of a file or folder: no id on the Hub has such a form."""
    return (
        name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name or name[-1:] == "/"
    )


def not_found(what: str, path: str | Path) -> str:
    """Return a sentence on a file or folder that is not there, with a similar name beside it."""
    shown, path = str(path), Path(path)
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    where = "" if path.is_absolute() else f" (the current folder is {Path.cwd()})"
    return f"{what} not found: {shown}{where}.{did_you_mean(path.name, beside)}"


def not_loaded(what: str, name: str, error: BaseException, revision: str | None = None) -> str:
    """Return why a model or a data set could not be loaded, a folder's or the Hub's, and what to
    do."""
    if Path(name).exists():
        return f"The {what} in {name} could not be loaded: {first_line(error)}. Check its files."
    if is_path(name):
        return not_found("Folder", name)
    which = f"{what} named {name!r}" + f", revision {revision!r}" * (revision not in (None, "main"))
    if is_offline():
        return (
            f"No {which} here: there is no such folder, and the cache of the Hub does not have it."
            f" The Hub itself is not asked ({OFFLINE}=1)."
        )
    return (
        f"The {what} {name!r} could not be loaded from the Hub: {first_line(error)}. Check the name."
        " If it is private or gated, run `hf auth login`."
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
