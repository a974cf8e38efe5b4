"""Signals and exit codes: collect signals instead of ending by them, and report how another process ended."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def collect_signals() -> Iterator[list[int]]:
    """Collect `HANDLED` signals in a list instead of reacting to them.

    Raising an exception where a signal strikes could lose a child process that is just being started. Signals that are
    ignored, such as SIGHUP under nohup, stay ignored.
    """
    received: list[int] = []
    wanted = [number for number in HANDLED if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda signum, frame: received.append(signum)) for number in wanted}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def how_it_ended(code: int) -> str:
    """Return "with exit code 3" or "by SIGTERM" for the exit code of a process, negative for a signal."""
    if code >= 0:
        return f"with exit code {code}"
    hint = ", which the system sends when memory runs out" if -code == signal.SIGKILL else ""
    return f"by {signal.Signals(-code).name}{hint}"


def shell_code(code: int) -> int:
    """Return an exit code as a shell reports it: 128 + N for signal N, which subprocess reports as -N."""
    return 128 - code if code < 0 else code


def end_as(code: int) -> int:
    """End this process by the signal that ended another one, without a core dump; return an ordinary exit code."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code
