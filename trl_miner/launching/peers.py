"""How the watchdogs of a run's processes tell each other their states, apart from the collectives of the training.

They use the store through which the processes have found each other, torch's `TCPStore` at MASTER_ADDR:MASTER_PORT.
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

PREFIX = "trl_miner/watchdog"  # of the keys in the store
CONNECT_SECONDS = 60.0


class Unreachable(RuntimeError):
    """The watchdogs cannot talk to each other."""


class Peers:
    """The last states of all processes.

    Args:
        rank: This process.
        size: Number of processes, which all construct their `Peers` at the same time.
        share: Returns, by rank, what the processes pass to it. Every process calls it equally often.
        interval: Seconds between two looks of the watchdog.

    Raises:
        Unreachable: On every process, if one of them does not reach the store.
    """

    def __init__(self, rank: int, size: int, share: Callable[[Any], list[Any]], interval: float) -> None:
        self.rank, self.size, self._interval = rank, size, interval
        self._mine: dict[str, Any] = {}
        self._heard: dict[int, tuple[int, dict[str, Any]]] = {}  # the number of each rank's last state, and the state
        self._known: dict[int, int] = {}  # the numbers that `exchange` has returned
        self._stop = threading.Event()
        store, problem = _connect()
        if problems := list(filter(None, share(problem))):
            raise Unreachable(problems[0])
        # In a thread of its own: asking a store whose process is stopped may never return.
        name = "trl_miner.launching.watchdog.peers"
        threading.Thread(target=self._talk, args=(store,), name=name, daemon=True).start()

    def _talk(self, store: Any) -> None:
        """Tell this process's state and hear the others', until the end or that of the store's process."""
        number = 0
        with contextlib.suppress(RuntimeError):  # of a store that is gone
            while not self._stop.wait(self._interval / 2):
                number += 1
                store.set(f"{PREFIX}/{self.rank}", json.dumps([number, self._mine]))
                keys = {rank: f"{PREFIX}/{rank}" for rank in range(self.size)}
                started = {rank: key for rank, key in keys.items() if store.check([key])}
                states = map(json.loads, store.multi_get([*started.values()]))
                self._heard = dict(zip(started, states, strict=True))

    def exchange(self, mine: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Tell the others this process's state, and return the states of all that have spoken since the last call."""
        self._mine = mine
        news = {self.rank: mine}
        for rank, (number, state) in self._heard.items():
            if rank != self.rank and state and number != self._known.get(rank):  # empty: it has only just started
                self._known[rank] = number
                news[rank] = state
        return news

    def close(self) -> None:
        """Stop talking."""
        self._stop.set()


def _connect() -> tuple[Any, str | None]:
    """Return the store of the run's processes, or why it cannot be reached."""
    from torch.distributed import TCPStore

    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not address or not port:
        return None, "MASTER_ADDR and MASTER_PORT do not say where the processes have found each other"
    try:
        timeout = timedelta(seconds=CONNECT_SECONDS)
        return TCPStore(address, int(port), timeout=timeout, wait_for_workers=False), None
    except (RuntimeError, ValueError) as error:
        return None, f"the store at {address}:{port} cannot be reached ({str(error).splitlines()[0]})"
