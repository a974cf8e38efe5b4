"""How the watchdogs of a run's processes talk to each other, apart from the collectives of the training."""

import contextlib
import json
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any


class Peers:
    """A small store, in process 0, that the watchdogs of all processes share: see `Watchdog.start`."""

    def __init__(self, rank: int, size: int, agree_on_port: Callable[[int], int], interval: float) -> None:
        from torch.distributed import TCPStore

        self.rank, self.size, self._interval = rank, size, interval

        def store(port: int) -> Any:
            host = os.environ.get("MASTER_ADDR", "127.0.0.1")
            timeout = timedelta(seconds=60)
            return TCPStore(host, port, is_master=rank == 0, wait_for_workers=False, timeout=timeout)

        self._store = store(0 if rank == 0 else agree_on_port(0))  # 0 chooses a free port
        if rank == 0:
            agree_on_port(self._store.port)
        self._mine: dict[str, Any] = {}
        self._received: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._stop = threading.Event()
        self._store.set(str(rank), json.dumps({"number": 0}))
        self._store.wait([str(other) for other in range(size)])
        # In a thread of its own: asking a store whose process is stopped never returns, whatever the timeout.
        threading.Thread(target=self._talk, name="trl_miner.launching.watchdog.peers", daemon=True).start()

    def _talk(self) -> None:
        number = 0
        with contextlib.suppress(RuntimeError):  # the store lives in process 0, which may be dead
            while not self._stop.wait(self._interval / 2):
                number += 1
                self._store.set(str(self.rank), json.dumps(self._mine | {"number": number}))
                states = self._store.multi_get([str(rank) for rank in range(self.size)])
                self._received = [json.loads(state) for state in states]

    def exchange(self, mine: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Tell the others this process's state, and return the states of all that have spoken since the last call."""
        self._mine = mine
        news: dict[int, dict[str, Any]] = {self.rank: mine}
        for rank, state in enumerate(self._received):
            if rank != self.rank and "beats" in state and state["number"] != self._numbers.get(rank):
                self._numbers[rank] = state["number"]
                news[rank] = state
        return news

    def close(self) -> None:
        """Stop talking."""
        self._stop.set()
