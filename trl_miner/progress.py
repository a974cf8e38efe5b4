"""What a command shows while it works, and its closing lines: a bar on a terminal, plain lines in a pipe or a file."""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from .progress_bar import Bar, terminal_bar, ticking

T = TypeVar("T")
_QUIET = ContextVar("_QUIET", default=False)
_SHOWN = ContextVar("_SHOWN", default=False)
# Seconds between two plain lines: after the first minutes they grow rarer, for a log of many hours.
_TICK, _EVERY, _EVERY_AT_MOST = 1.0, 10.0, 60.0


@contextlib.contextmanager
def quietly(quiet: bool = True) -> Iterator[None]:
    """Within it, no progress and no closing lines; `quiet=False` changes nothing."""
    token = _QUIET.set(quiet or _QUIET.get())
    try:
        yield
    finally:
        _QUIET.reset(token)


def is_quiet() -> bool:
    """Whether `--quiet` was given, for what prints by other means."""
    return _QUIET.get()


def duration(seconds: float) -> str:
    """Seconds for a reader: "48 s", "7 min 48 s", "1 h 5 min"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def track(
    iterable: Iterable[T],
    title: str,
    *,
    total: int | None = None,
    unit: str = "it",
    quiet: bool = False,
    leave: bool = True,
) -> Iterator[T]:
    """The items of `iterable`, with progress on stderr.

    Args:
        iterable: What is worked through.
        title: What is being done: "grading".
        total: Number of items; None: its length, where it has one.
        unit: What is counted, in the plural: "samples".
        quiet: Show nothing.
        leave: As of `Progress`.

    Returns:
        A generator of the same items.
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with Progress(title, total, unit=unit, quiet=quiet, leave=leave) as progress:
        for item in iterable:
            yield item
            progress.advance()


class Progress:
    """How far some work is, on stderr: a bar on a terminal, else a line every 10 seconds (later: every minute).

    A context manager. What is printed meanwhile, by `print`, warnings or logging, stands above the bar. An error,
    Ctrl-C and SIGTERM wipe the bar away. One within another shows nothing.

    Args:
        title: What is being done: "sampling".
        total: How many there are; None: unknown, so no time left.
        unit: What is counted, in the plural: "samples"; "": nothing is, the seconds are shown.
        quiet: Show nothing. So does `quietly`.
        initial: How many were done before, by an earlier call; they do not count for the rate.
        leave: Leave the last state, on a terminal and as a line; False: it would be no news.

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
        self._bar: Bar | None = None
        self._context = contextlib.ExitStack()
        self._start = self._last = time.monotonic()

    def __enter__(self) -> "Progress":
        self._start = self._last = time.monotonic()
        self._quiet = self._quiet or is_quiet() or _SHOWN.get()
        if not self._quiet:
            _SHOWN.set(True)
            self._context.callback(_SHOWN.set, False)
            if sys.stderr.isatty():
                self._bar = self._context.enter_context(terminal_bar(self))
            self._context.enter_context(ticking(self._tick, _TICK))
        return self

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        shown = not self._quiet and self.leave and error is None
        if self._bar is not None:
            self._bar.leave = shown
        self._context.close()
        if shown and self._bar is None:
            self.say(f"{self.title}: {self.state(ended=True)}")

    def advance(self, n: int = 1) -> None:
        """`n` more are done."""
        self.done += n
        if self._bar is not None:
            self._bar.update(n)

    def say(self, text: str) -> None:
        """One line for the reader, above the bar."""
        if not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def state(self, ended: bool = False) -> str:
        """How far it is, in words: "640 of 6400 samples, 12.3/s, 7 min 48 s left"."""
        seconds, new, parts = time.monotonic() - self._start, self.done - self._initial, []
        if self.unit:
            parts.append(f"{self.done} of {self.total} {self.unit}" if self.total else f"{self.done} {self.unit}")
        if new and seconds > 0:
            parts.append(_rate(new / seconds))
            if self.total and not ended:
                parts.append(f"{duration(max(0, self.total - self.done) * seconds / new)} left")
        if ended or not new:
            parts.append(duration(seconds))
        return ", ".join([*parts, self.note] if self.note else parts)

    def _tick(self) -> None:
        """Every second: a long item, too, is seen to be at work."""
        now = time.monotonic()
        if self._bar is not None:
            self._bar.refresh()
        elif now - self._last >= min(_EVERY_AT_MOST, max(_EVERY, (now - self._start) / 10)):
            self._last = now
            self.say(f"{self.title}: {self.state()}")


def _rate(rate: float) -> str:
    """Per second, or the time of one where that is long: "12.3/s", "2.5 s each", "7 min 48 s each"."""
    if rate >= 1:
        return f"{rate:.3g}/s" if rate < 100 else f"{rate:.0f}/s"
    return f"{1 / rate:.3g} s each" if rate > 1 / 60 else f"{duration(1 / rate)} each"


def finish(
    written: Sequence[str | Path],
    next_command: str | Sequence[str] | None = None,
    *,
    quiet: bool = False,
) -> None:
    """The closing lines of a command, on stdout: what it wrote, and what to do next.

    Args:
        written: The files and folders it wrote.
        next_command: One command or several, as they are to be typed (`shlex.join`).
        quiet: Print nothing. So does `quietly`.
    """
    if quiet or is_quiet():
        return
    commands = [next_command] if isinstance(next_command, str) else list(next_command or ())
    if written:
        print("Wrote", *(f"  {path}" for path in written), sep="\n")
    if commands:
        print("Next", *(f"  {command}" for command in commands), sep="\n")
    sys.stdout.flush()
