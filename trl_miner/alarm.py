"""An alarm of the kernel's that no other code sets: `signal.alarm` is one for all, and the last to set it has it."""

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

_SIGNAL: Any = getattr(signal, "SIGRTMIN", signal.SIGALRM) + 5  # one of those without a meaning
_MONOTONIC = 1  # CLOCK_MONOTONIC


class _Event(ctypes.Structure):
    """`struct sigevent`, 64 bytes: what a timer does. It sends a signal, as 0 says."""

    _fields_ = (("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("how", ctypes.c_int), ("_", ctypes.c_char * 48))


class _Times(ctypes.Structure):
    """`struct itimerspec`: seconds and nanoseconds from one ring to the next, and to the first."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("again_s", "again_ns", "first_s", "first_ns"))


@lru_cache
def _library() -> Any:
    """Return the C library with POSIX timers; None: there are none, as on macOS."""
    for name in (None, "librt.so.1"):  # of its own before glibc 2.34
        try:
            library = ctypes.CDLL(name)
            return library if hasattr(library, "timer_create") else None
        except OSError:
            continue
    return None


@contextmanager
def kernel_alarm(seconds: float, again: float, error: type[BaseException]) -> Iterator[None]:
    """Raise an exception in the block after some seconds, and then regularly until it ends; in the main thread alone.

    It ends sleep and waiting, and reaches long calls of Python's own that look for signals.
    """
    library, timer, is_on = _library(), ctypes.c_void_p(), True

    def ring(*_: Any) -> None:
        if is_on:
            raise error

    if library is None or library.timer_create(_MONOTONIC, ctypes.byref(_Event(signal=_SIGNAL)), ctypes.byref(timer)):
        yield
        return
    before = signal.signal(_SIGNAL, ring)
    try:
        try:
            times = _Times(*_split(again), *_split(seconds))
            library.timer_settime(timer, 0, ctypes.byref(times), None)
            yield
        finally:
            is_on = False
    finally:
        library.timer_delete(timer)
        # Never the default, which would end the process where a ring still waits behind blocked signals.
        signal.signal(_SIGNAL, before if callable(before) else signal.SIG_IGN)


def _split(seconds: float) -> tuple[int, int]:
    """Return whole seconds and nanoseconds; never 0, which would switch a timer off."""
    nanoseconds = max(1, int(seconds * 1e9))
    return nanoseconds // 10**9, nanoseconds % 10**9
