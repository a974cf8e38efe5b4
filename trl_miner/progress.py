"""Show the progress of long work, as tqdm's bar or as plain lines, and the closing lines of a command."""

import contextlib
import io
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO, TypeVar
from weakref import WeakSet

from tqdm import tqdm

from .redaction import redact

T = TypeVar("T")
_QUIET = ContextVar("_QUIET", default=False)
_SHOWN = ContextVar("_SHOWN", default=False)
# Seconds between two plain lines, which become rarer with time so that a log of many hours stays short.
_TICK, _EVERY, _EVERY_AT_MOST = 1.0, 10.0, 60.0


@contextlib.contextmanager
def quietly(quiet: bool = True) -> Iterator[None]:
    """Show no progress and no closing lines within the block; `quiet=False` changes nothing."""
    token = _QUIET.set(quiet or _QUIET.get())
    try:
        yield
    finally:
        _QUIET.reset(token)


def is_quiet() -> bool:
    """Return whether `--quiet` was given, for code that prints by other means."""
    return _QUIET.get()


def duration(seconds: float) -> str:
    """Return seconds as text: "48 s", "7 min 48 s", "1 h 5 min"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def track(iterable: Iterable[T], title: str, *, total: int | None = None, **options: Any) -> Iterator[T]:
    """Yield the items with progress on stderr; `total` and the other options are those of `Progress`."""
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with Progress(title, total, **options) as progress:
        for item in iterable:
            yield item
            progress.advance()


class Progress(tqdm):
    """tqdm's bar on stderr; off a terminal a line every 10 seconds, later every minute.

    Whatever is printed or logged meanwhile stands above the bar. A `Progress` within another one shows nothing.

    Args:
        title: The work: "sampling".
        total: The number of items. None: unknown, so the time left is not shown.
        unit: The items, in the plural: "samples". "": nothing is counted, only the seconds.
        quiet: Show nothing, as within `quietly`.
        initial: The items done by an earlier call, which do not count for the rate.
        leave: Whether the last state stays, unless an exception ends the work.

    Attributes:
        note: Shown at the end: "1234 tokens/s".
    """

    _instances: WeakSet[Any] = WeakSet()  # apart from other libraries' bars, which would move this one down
    monitor_interval = 0  # `_tick` redraws, also where a single item takes long

    def __init__(
        self,
        title: str,
        total: int | None = None,
        *,
        unit: str = "it",
        quiet: bool = False,
        initial: int = 0,
        leave: bool = True,
    ) -> None:
        self.note = ""
        self._is_terminal = sys.stderr.isatty()
        numbers = f"{{n_fmt}}{'/{total_fmt}' if total else ''} {unit} "
        numbers += "[{elapsed}<{remaining}, {rate_fmt}{postfix}]" if total else "[{elapsed}, {rate_fmt}{postfix}]"
        bar = "{l_bar}{bar}| " if self._is_terminal and total else "{desc}: "
        super().__init__(
            desc=title,
            total=total,
            initial=initial,
            leave=leave,
            disable=quiet or is_quiet() or _SHOWN.get(),
            file=sys.stderr if self._is_terminal else io.StringIO(),
            mininterval=0.1 if self._is_terminal else float("inf"),
            smoothing=0,  # the rate is the mean of the whole work
            ncols=shutil.get_terminal_size().columns - 1 if self._is_terminal else None,
            nrows=24,  # else a terminal that does not know its size gets no bar
            bar_format=bar + numbers if unit else "{desc}: {elapsed}{postfix}",
        )
        self._context = contextlib.ExitStack()
        if self.disable:
            return
        _SHOWN.set(True)
        self._context.callback(_SHOWN.set, False)
        if self._is_terminal:
            self._context.enter_context(_printing_above(self))
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(ended,), daemon=True)
        ticker.start()
        self._context.callback(ticker.join)
        self._context.callback(ended.set)

    @property
    def done(self) -> int:
        """The items that are done."""
        return int(self.n)

    @property
    def format_dict(self) -> dict[str, Any]:
        return super().format_dict | {"postfix": self.note}

    def advance(self, n: int = 1) -> None:
        """Count `n` more items as done."""
        self.update(n)

    def close(self) -> None:
        if not self.disable:
            self._context.close()
            if self.leave and not self._is_terminal:
                print(self, file=sys.stderr, flush=True)
        super().close()

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        if error is not None:
            self.leave = False
        self.close()

    def _tick(self, ended: threading.Event) -> None:
        start = last = time.monotonic()
        while not ended.wait(_TICK):
            now = time.monotonic()
            if self._is_terminal:
                self.refresh()
            elif now - last >= min(_EVERY_AT_MOST, max(_EVERY, (now - start) / 10)):
                last = now
                print(self, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _printing_above(bar: Progress) -> Iterator[None]:
    """Show what is printed and logged above the bar."""
    above = {stream: _Above(stream, bar) for stream in (sys.stdout, sys.stderr) if stream.isatty()}
    loggers = [logging.root, *logging.Logger.manager.loggerDict.values()]
    with contextlib.ExitStack() as stack:
        for stream in above.values():
            stack.callback(stream.end_line)
        for handler in [handler for logger in loggers for handler in getattr(logger, "handlers", ())]:
            if type(handler) is logging.StreamHandler and handler.stream in above:
                stack.callback(handler.setStream, handler.setStream(above[handler.stream]))
        stack.enter_context(contextlib.redirect_stdout(above.get(sys.stdout, sys.stdout)))
        stack.enter_context(contextlib.redirect_stderr(above.get(sys.stderr, sys.stderr)))
        yield


class _Above:
    """A stream whose lines stand above the bar, once they are whole; of another library's bar, the last state."""

    def __init__(self, stream: TextIO, bar: Progress) -> None:
        self._stream, self._bar, self._process, self._held = stream, bar, os.getpid(), ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def end_line(self) -> None:
        """Write what is left of a line."""
        if self._held:
            self.write("\n")

    def write(self, text: str) -> int:
        if os.getpid() != self._process:  # a fork, such as a data loader, whose copy of tqdm's lock may stay locked
            return self._stream.write(text)
        *lines, self._held = (line.rpartition("\r")[2] for line in (self._held + text).split("\n"))
        if lines:
            with self._bar.get_lock():
                self._bar.clear(nolock=True)
                self._stream.writelines(f"{line}\n" for line in lines)
                self._stream.flush()
                self._bar.refresh(nolock=True)
        return len(text)


def finish(written: Sequence[str | Path], next_command: str | Sequence[str] = (), *, quiet: bool = False) -> None:
    """Print the closing lines of a command on stdout: the paths that it wrote, and useful next commands."""
    if quiet or is_quiet():
        return
    commands = [next_command] if isinstance(next_command, str) else next_command
    if written:
        print("Wrote", *(f"  {path}" for path in written), sep="\n")
    if commands:
        print("Next", *(f"  {redact(command)}" for command in commands), sep="\n")
    sys.stdout.flush()
