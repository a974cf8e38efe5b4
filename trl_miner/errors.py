"""How a user's mistake is told: in one line with rule, value and next step. `--traceback` shows
where it arose."""

import os
import sys
import time
import traceback

from .redaction import redact

# the variable by which processes that a command starts know of the option
TRACEBACK = "TRL_MINER_TRACEBACK"
EXIT_CODE = 2
INTERRUPTED = 130  # the exit code after Ctrl-C, as a shell has it
_PATIENCE_SECONDS = 5.0


def describe(error: BaseException) -> str:
    """Return an error in one line, without secrets; one that may be a fault of the program is
    called by its type."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename} cannot be used: {error.strerror}."
    elif isinstance(error, ValueError | OSError | ImportError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}. --traceback shows where."
    return redact(" ".join(text.split()))


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, which may go on for a page, to be quoted
    within brackets."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")


def tell(error: Exception, command: str) -> int:
    """Print the error that ended a command, and return the exit code.

    Of several processes the first speaks, whose end ends the others. They speak only if it has
    nothing to say.
    """
    if int(os.environ.get("RANK") or 0) > 0:
        time.sleep(_PATIENCE_SECONDS)
    if os.environ.get(TRACEBACK):
        print(redact("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    print(
        f"{f'trl-miner {command}'.strip()}: error: {describe(error)}", file=sys.stderr, flush=True
    )
    return EXIT_CODE
