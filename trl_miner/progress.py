"""Show the progress of long work, as a bar or as plain lines, and the closing lines of a command."""

import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self, TextIO, TypeVar
from weakref import WeakSet

from tqdm import tqdm

from .redaction import redact

T = TypeVar("T")
_QUIET = ContextVar("_QUIET", default=False)
_SHOWN = ContextVar("_SHOWN", default=False)
_TITLE = 32  # characters, so that a path in it does not push the numbers out of the line
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


class Progress:
    """Shows progress on stderr: a bar on a terminal, elsewhere a line every 10 seconds (later every minute).

    A context manager. Whatever is printed or logged meanwhile stands above the bar. A `Progress` within another one
    shows nothing.

    Args:
        title: The work: "sampling".
        total: The number of items. None: unknown, so the time left is not shown.
        unit: The items, in the plural: "samples". "": nothing is counted, only the seconds.
        quiet: Show nothing, as within `quietly`.
        initial: The items done by an earlier call, which do not count for the rate.
        leave: Whether the last state stays, on a terminal and as a line.

    Attributes:
        note: Shown at the end: "1234 tokens/s".
    """

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
        self.title, self.total, self.unit, self.leave = title, total, unit, leave
        self.done, self.note = initial, ""
        self._initial, self._quiet = initial, quiet
        self._bar: _Bar | None = None
        self._context = contextlib.ExitStack()
        self._ended = threading.Event()
        self._start = self._last = time.monotonic()

    def __enter__(self) -> Self:
        self._start = self._last = time.monotonic()
        self._quiet = self._quiet or is_quiet() or _SHOWN.get()
        if not self._quiet:
            _SHOWN.set(True)
            self._context.callback(_SHOWN.set, False)
            if sys.stderr.isatty():
                self._bar = self._context.enter_context(_Bar(self))
                self._context.enter_context(_printing_above(self._bar))
            ticker = threading.Thread(target=self._keep_ticking, daemon=True)
            ticker.start()
            self._context.callback(ticker.join)
            self._context.callback(self._ended.set)
        return self

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        shown = not self._quiet and self.leave and error is None
        if self._bar is not None:
            self._bar.leave = shown
        self._context.close()
        if shown and self._bar is None:
            self.say(f"{self.title}: {self.state(ended=True)}")

    def advance(self, n: int = 1) -> None:
        """Count `n` more items as done."""
        self.done += n
        if self._bar is not None:
            self._bar.update(n)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def state(self, ended: bool = False) -> str:
        """Return the progress in words: "640 of 6400 samples, 12.3/s, 7 min 48 s left"."""
        seconds, new, parts = time.monotonic() - self._start, self.done - self._initial, []
        if self.unit:
            parts.append(f"{self.done} of {self.total} {self.unit}" if self.total else f"{self.done} {self.unit}")
        if new and seconds > 0:
            parts.append(rate(new / seconds))
            if self.total and not ended:
                parts.append(f"{duration(max(0, self.total - self.done) * seconds / new)} left")
        if ended or not new:
            parts.append(duration(seconds))
        return ", ".join([*parts, self.note] if self.note else parts)

    def _keep_ticking(self) -> None:
        while not self._ended.wait(_TICK):
            self._tick()

    def _tick(self) -> None:
        """Refresh every second, so that a single long item also shows that work goes on."""
        now = time.monotonic()
        if self._bar is not None:
            self._bar.refresh()
        elif now - self._last >= min(_EVERY_AT_MOST, max(_EVERY, (now - self._start) / 10)):
            self._last = now
            self.say(f"{self.title}: {self.state()}")


class _Bar(tqdm):
    """tqdm's bar with the text of `Progress.state`."""

    _instances: WeakSet[Any] = WeakSet()  # apart from other libraries' bars, which would move this one down
    monitor_interval = 0  # `Progress` itself redraws

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        title, half = progress.title, _TITLE // 2
        super().__init__(
            desc=title if len(title) <= _TITLE else f"{title[: half - 2]}...{title[1 - half :]}",
            total=progress.total,
            initial=progress.done,
            file=sys.stderr,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {state}" if progress.total else "{desc}: {state}",
            miniters=1,
            nrows=24,  # otherwise a terminal that does not know its size gets no bar
        )

    @property
    def format_dict(self) -> dict[str, Any]:
        state = self.progress.state(ended=self.n == self.total)
        return super().format_dict | {"state": state, "ncols": shutil.get_terminal_size().columns - 1}


@contextlib.contextmanager
def _printing_above(bar: _Bar) -> Iterator[None]:
    """Show what is printed and logged above the bar."""
    out, err = (_Above(stream, bar) if stream.isatty() else stream for stream in (sys.stdout, sys.stderr))
    replaced = {sys.stdout: out, sys.stderr: err}
    handlers = [handler for handler in _console_handlers() if handler.stream in replaced]
    streams = [handler.setStream(replaced[handler.stream]) for handler in handlers]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield
    finally:
        for handler, stream in zip(handlers, streams, strict=True):
            handler.setStream(stream)
        for stream in (out, err):
            if isinstance(stream, _Above):
                stream.end_line()


def _console_handlers() -> list[logging.StreamHandler[Any]]:
    loggers = [logging.root, *logging.Logger.manager.loggerDict.values()]
    handlers = [handler for logger in loggers for handler in getattr(logger, "handlers", ())]
    return [handler for handler in handlers if type(handler) is logging.StreamHandler]


class _Above:
    """A stream whose lines stand above the bar, once they are whole. It leaves out the bars of other libraries."""

    def __init__(self, stream: TextIO, bar: _Bar) -> None:
        self._stream, self._bar, self._process = stream, bar, os.getpid()
        self._held, self._is_bar = "", False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def end_line(self) -> None:
        """Write what is left of a line."""
        if self._held:
            self.write("\n")

    def write(self, text: str) -> int:
        if os.getpid() != self._process:  # a fork, such as a data loader, whose copy of tqdm's lock may stay locked
            return self._stream.write(text)
        was_bar, self._is_bar = self._is_bar, text.startswith("\r") and "\n" not in text
        if not self._is_bar and not (was_bar and text == "\n"):
            lines, newline, self._held = (self._held + text).rpartition("\n")
            if newline:
                self._write_above(lines + newline)
        return len(text)

    def _write_above(self, lines: str) -> None:
        with self._bar.get_lock():
            self._bar.clear(nolock=True)
            self._stream.write(lines)
            self._stream.flush()
            self._bar.refresh(nolock=True)


def rate(per_second: float) -> str:
    """Return items per second, or the time of one if it is long: "12.3/s", "2.5 s each", "7 min 48 s each"."""
    if per_second >= 1:
        return f"{per_second:.3g}/s" if per_second < 100 else f"{per_second:.0f}/s"
    return f"{1 / per_second:.3g} s each" if per_second > 1 / 60 else f"{duration(1 / per_second)} each"


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
