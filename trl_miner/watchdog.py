"""Deprecated: call `trl_miner.beat`; the watchdog itself is in `trl_miner.launching.watchdog`."""

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    if name not in ("RunStopped", "Watchdog", "beat"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
    from . import heartbeat
    from .launching import watchdog

    warnings.warn(
        "trl_miner.watchdog has moved: call trl_miner.beat(), and import the rest from trl_miner.launching.watchdog.",
        FutureWarning,
        stacklevel=2,
    )
    return getattr(heartbeat if name == "beat" else watchdog, name)
