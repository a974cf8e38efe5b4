"""The sign of life that long-running code gives, so that the watchdog does not take it for stuck."""

from collections.abc import Callable

# called at every beat of this process, in the thread that beats; they must return at once
listeners: set[Callable[[], None]] = set()


def beat() -> None:
    """Report progress to the watchdog. Call it from code that runs for minutes, such as a slow reward function.

    Without a watchdog it does nothing.
    """
    for listener in tuple(listeners):  # a copy: the watchdog's thread may remove itself meanwhile
        listener()
