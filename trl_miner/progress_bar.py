"""A progress bar in the last line of a terminal, below all other output. Every end leaves a clean line."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO, Any
from weakref import WeakSet

from tqdm import tqdm


class Bar(tqdm):
    """tqdm's bar with the text of `Progress.state`."""

    _instances: WeakSet[Any] = WeakSet()  # apart from other bars, which would move the cursor past it: see `_above`
    monitor_interval = 0  # no thread of tqdm's: `ticking` redraws

    def __init__(self, progress: Any, file: Any) -> None:
        self.progress = progress
        words = "{desc}: {percentage:3.0f}%|{bar}| {state}" if progress.total else "{desc}: {state}"
        super().__init__(
            desc=_shortened(progress.title),
            total=progress.total,
            initial=progress.done,
            file=file,
            bar_format=words,
            miniters=1,
            nrows=24,  # otherwise a terminal that does not know its size gets no bar
            delay=0 if progress.leave else 0.5,  # seconds: work that ends sooner need not flicker
        )

    @property
    def format_dict(self) -> dict[str, Any]:
        return super().format_dict | {"state": self.progress.state(ended=self.n == self.total), "ncols": _width()}


def _shortened(title: str, most: int = 32) -> str:
    """Shorten a title, so that a path in it does not push the numbers out of the line."""
    return title if len(title) <= most else f"{title[: most // 2 - 2]}...{title[1 - most // 2 :]}"


def _width() -> int:
    """Return the terminal's columns, which may change; a terminal that does not know says 0."""
    with contextlib.suppress(OSError):
        return max(20, (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1)
    return 79


@contextlib.contextmanager
def terminal_bar(progress: Any) -> Iterator[Bar]:
    """Show the bar of a `Progress` below all other output."""
    with contextlib.ExitStack() as stack:
        bar = Bar(progress, _Raw(sys.stderr))
        stack.callback(_close, bar)
        for stream in {id(stream): stream for stream in (sys.stdout, sys.stderr) if stream.isatty()}.values():
            stack.enter_context(_above(bar, stream))
        stack.enter_context(_wiped_on_sigterm(bar))
        yield bar


def _close(bar: Bar) -> None:
    if not bar.leave:
        bar.clear()  # tqdm itself does not clear a bar that was delayed
    bar.close()


class _Raw:
    """A stream that still writes as it did before `_above`."""

    def __init__(self, stream: IO[str]) -> None:
        self.write, self._stream = stream.write, stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _above(bar: Bar, stream: IO[str]) -> Iterator[None]:
    """Write whole lines that go to `stream` above the bar.

    This replaces the stream's own `write` and not `sys.stderr`, because handlers of `logging` hold the stream itself.
    """
    write, held, is_bar, process = stream.write, "", False, os.getpid()

    def write_above(text: str) -> int:
        nonlocal held, is_bar
        if os.getpid() != process:  # a fork, such as a data loader, whose copy of the lock may stay locked
            return write(text)
        was_bar, is_bar = is_bar, text.startswith("\r") and "\n" not in text
        if is_bar or (was_bar and text == "\n"):  # another tqdm bar, or its end: there is only one line
            return len(text)
        with bar.get_lock():
            lines, newline, held = (held + text).rpartition("\n")
            if newline:
                bar.clear(nolock=True)
                write(lines + newline)
                stream.flush()
                bar.refresh(nolock=True)
        return len(text)

    stream.write = write_above  # type: ignore[method-assign]
    try:
        yield
    finally:
        del stream.write
        if held:
            bar.clear()
            write(held + "\n")
            stream.flush()


@contextlib.contextmanager
def ticking(tick: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `tick` every so many seconds from a thread."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            tick()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _wiped_on_sigterm(bar: Bar) -> Iterator[None]:
    """Wipe the bar before SIGTERM ends the process. A handler that somebody else has set is left alone."""
    is_free = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    # One of several processes may hang in a collective operation, where no Python handler would ever run.
    is_alone = os.environ.get("WORLD_SIZE", "1") == "1"
    if threading.current_thread() is not threading.main_thread() or not is_free or not is_alone:
        yield
        return

    def wipe(signum: int, frame: FrameType | None) -> None:
        # without the bar's lock, which the interrupted code may hold
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), b"\r\x1b[K")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, wipe)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
