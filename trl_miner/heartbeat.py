"""The sign of life that long-running code gives, so that the watchdog does not take it for stuck."""

from collections.abc import Callable

_listeners: set[Callable[[], None]] = set()


def beat() -> None:
    """Report progress to the watchdog. Call it from code that runs for minutes, such as a slow reward function.

    Without a watchdog it does nothing.
    """
    for listener in tuple(_listeners):  # a copy: the watchdog's thread may remove itself meanwhile
        listener()


def listen(listener: Callable[[], None]) -> None:
    """Call `listener` at every beat of this process.

    Args:
        listener: Called in the thread that beats; it must return at once.
    """
    _listeners.add(listener)


def stop_listening(listener: Callable[[], None]) -> None:
    """Stop calling `listener`; one that was not listening is ignored.

    Args:
        listener: As passed to `listen`.
    """
    _listeners.discard(listener)
