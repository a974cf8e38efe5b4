"""Show the progress of long work with tqdm, and the closing lines of a command."""

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO, TypeVar

from tqdm import tqdm

from .redaction import redact

T = TypeVar("T")
_QUIET = ContextVar("_QUIET", default=False)
_SHOWN = ContextVar("_SHOWN", default=False)
_LOG_SECONDS = 30.0  # between two lines of a log


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
    """Return seconds as text: "48 s", "7 min 48 s", "1 h 5 min"; "unknown" if no clock shows
    them."""
    if not seconds < 1e12:
        return "unknown"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {seconds} s"
        if minutes
        else f"{seconds} s"
    )


def track(
    iterable: Iterable[T], title: str, *, total: int | None = None, **options: Any
) -> Iterator[T]:
    """Yield the items with progress on stderr; `total` and the other options are those of
    `Progress`."""
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with Progress(title, total, **options) as progress:
        for item in iterable:
            yield item
            progress.update()


class Progress(tqdm):
    """tqdm's bar on stderr, below what is printed meanwhile; off a terminal a line every 30
    seconds.

    A `Progress` within another one shows nothing.

    Args:
        title: The work: "sampling".
        total: The number of items. None: unknown.
        unit: The items, in the plural: "samples". "": nothing is counted; shown on a terminal
            alone.
        quiet: Show nothing, as within `quietly`.
        initial: The items done by an earlier call, which do not count for the rate.
        leave: Whether the last state stays.
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
        self._is_terminal = sys.stderr.isatty()
        super().__init__(
            desc=title,
            total=total,
            initial=initial,
            unit=f" {unit}",
            leave=leave,
            disable=quiet or is_quiet() or _SHOWN.get() or not (unit or self._is_terminal),
            file=sys.stderr if self._is_terminal else io.StringIO(),
            mininterval=0.1 if self._is_terminal else _LOG_SECONDS,
            smoothing=0,  # the rate is the mean of the whole work
            bar_format=None if unit else "{desc} ...",
        )
        self._context = contextlib.ExitStack()
        if not self.disable:
            _SHOWN.set(True)
            self._context.callback(_SHOWN.set, False)
        if not self.disable and self._is_terminal:
            above = _Above(sys.stderr)
            self._context.callback(above.release)
            self._context.enter_context(contextlib.redirect_stderr(above))
            if sys.stdout.isatty():
                self._context.enter_context(contextlib.redirect_stdout(above))

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Draw the bar, or print a line of a log once something is done."""
        if self._is_terminal:
            super().display(msg, pos)
        elif msg is None and self.n > self.initial:
            print(self, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the progress: what is printed from now on stands below it."""
        if not self.disable:
            self._context.close()
        super().close()


class _Above:
    """A stream whose lines stand above the bar, once they are whole."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._held = stream, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        *lines, self._held = (self._held + text).split("\n")
        for line in lines:
            tqdm.write(line, file=self._stream)
        return len(text)

    def release(self) -> None:
        """Write a last line that has not ended; of another bar nothing, which ends with a
        return."""
        if rest := self._held.rpartition("\r")[2].strip():
            tqdm.write(rest, file=self._stream)


def finish(written: Sequence[str | Path], next_command: str | Sequence[str] = ()) -> None:
    """Print the closing lines of a command on stdout: the paths that it wrote, and useful next
    commands."""
    if is_quiet():
        return
    commands = [next_command] if isinstance(next_command, str) else next_command
    if written:
        print("Wrote", *(f"  {path}" for path in written), sep="\n")
    if commands:
        print("Next", *(f"  {redact(command)}" for command in commands), sep="\n")
    sys.stdout.flush()
