"""How the watchdogs of a run's processes tell each other their states, apart from the collectives of the training.

They use the store through which the processes have found each other, torch's `TCPStore` at MASTER_ADDR:MASTER_PORT.
"""

import contextlib
import json
import os
import threading
from datetime import timedelta
from typing import Any

PREFIX = "trl_miner/watchdog"  # of the keys in the store
CONNECT_SECONDS = 60.0


class Peers:
    """The last states of all processes, by rank, as far as they have been heard.

    Args:
        rank: This process.
        size: Number of processes.
        interval: Seconds between two looks of the watchdog.

    Raises:
        RuntimeError: The store cannot be reached.
    """

    def __init__(self, rank: int, size: int, interval: float) -> None:
        self.mine: Any = None  # this process's state, told to the others
        self.states: dict[int, Any] = {}
        self._rank, self._interval = rank, interval
        self._keys = {other: f"{PREFIX}/{other}" for other in range(size) if other != rank}
        self._stop = threading.Event()
        # In a thread of its own: asking a store whose process is stopped may never return.
        threading.Thread(target=self._talk, args=(_connect(),), name=__name__, daemon=True).start()

    def _talk(self, store: Any) -> None:
        """Tell this process's state and hear the others', until the end or that of the store's process."""
        with contextlib.suppress(RuntimeError):  # of a store that is gone
            while not self._stop.wait(self._interval / 2):
                if self.mine is not None:
                    store.set(f"{PREFIX}/{self._rank}", json.dumps(self.mine))
                started = [rank for rank, key in self._keys.items() if store.check([key])]
                states = store.multi_get([self._keys[rank] for rank in started])
                self.states = dict(zip(started, map(json.loads, states), strict=True))

    def close(self) -> None:
        """Stop talking."""
        self._stop.set()


def _connect() -> Any:
    from torch.distributed import TCPStore

    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    try:
        timeout = timedelta(seconds=CONNECT_SECONDS)
        return TCPStore(address, int(port), timeout=timeout, wait_for_workers=False)
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"The watchdog needs the store at MASTER_ADDR:MASTER_PORT: got {address}:{port} "
            f"({str(error).splitlines()[0]}). Set watchdog_seconds: 0 to train without a watchdog."
        ) from error
