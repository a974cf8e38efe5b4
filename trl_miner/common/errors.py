"""A mistake of the user's, told in one line, and the exit codes of all commands."""

import errno
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from .redaction import hide

FAILED, MISTAKE, INTERRUPTED, TERMINATED = 1, 2, 130, 143
TRACEBACK = "TRL_MINER_TRACEBACK"  # set by `--traceback`; child processes inherit it
_PATIENCE_SECONDS = 5.0  # in which the first process's end ends the others


@contextmanager
def told_in_one_line(command: str) -> Iterator[None]:
    """Tell what goes wrong within the block in one line on stderr, and exit: with 2 for an error,
    which is taken for a mistake of the user's, and with 130 for Ctrl-C.

    Of several processes the first speaks; the others only if it has nothing to say.
    """
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        tell(command, "stopped by Ctrl-C.")
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            raise SystemExit(FAILED) from None
        if os.environ.get("RANK", "0") != "0":
            time.sleep(_PATIENCE_SECONDS)
        if os.environ.get(TRACEBACK):
            print(hide("".join(traceback.format_exception(error))), end="", file=sys.stderr)
        tell(command, f"error: {describe(error)}")
        raise SystemExit(MISTAKE) from None


def _reader_is_gone() -> bool:
    """Return whether nobody reads what is printed, as behind `| head`; then nothing is printed any
    more. A broken pipe of other code's is an error like others."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def tell(command: str, text: str) -> None:
    """Print a line on stderr that names the command."""
    print(f"{f'trl-miner {command}'.strip()}: {text}", file=sys.stderr, flush=True)


def describe(error: BaseException) -> str:
    """Return an error as one line without secrets. One of a kind that no message of ours or TRL's
    has comes with its name."""
    text = " ".join(str(error).split())
    if is_disk_full(error):
        text = f"The disk is full ({text}). Free some space."
    elif not isinstance(error, ValueError | OSError | ImportError):
        text = f"{type(error).__name__}: {text.rstrip('.')}. --traceback shows where."
    return hide(text)


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error, or one that it came from, says that the disk is full."""
    marks = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
    cause = error.__cause__ or error.__context__
    return any(mark in str(error) for mark in marks) or bool(cause and is_disk_full(cause))
