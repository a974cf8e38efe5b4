"""How a user's mistake is told: in one line with rule, value and next step. `--traceback` shows
where it arose."""

import errno
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from .redaction import redact

# the variable by which processes that a command starts know of the option
TRACEBACK = "TRL_MINER_TRACEBACK"
EXIT_CODE = 2
INTERRUPTED = 130  # the exit code after Ctrl-C, as a shell has it
_PATIENCE_SECONDS = 5.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ARGPARSE = {  # its messages, and ours in their place
    r"argument (.+?): expected (?:one|at least one) argument": "{} needs a value.",
    r"argument (.+?): invalid (\w+) value: (.+)": "{0} {2} is not {1}.",
    r"argument (.+?): invalid choice: (.+?) \(choose from (.+)\)": "{} has no choice {}: choose from"
    " {}.",
    r"argument (.+?): not allowed with argument (.+)": "{} and {} exclude each other. Leave one out.",
    r"the following arguments are required: (.+)": "{} is missing.",
    r"argument (.+?): (.+)": "{}: {}.",
}


class Explained(Exception):  # noqa: N818
    """An error whose message says what to do. One line tells it wherever it arises, in the midst of
    a training, too."""


class RunEnded(Explained, RuntimeError):
    """A training cannot go on, for a reason that lies outside of it, such as a full disk."""


def is_explained(error: BaseException) -> bool:
    """Return whether one line tells an error that arises within a training."""
    return isinstance(error, Explained) or getattr(error, "errno", None) in _FULL


def describe(error: BaseException) -> str:
    """Return an error in one line, without secrets; one that may be a fault of the program is
    called by its type."""
    if isinstance(error, OSError) and error.errno in _FULL:
        where = f" for {error.filename}" if error.filename else ""
        text = (
            f"The disk has no room left{where}. Free some of it, or choose another folder; a"
            " training goes on from its newest checkpoint with --resume_from_checkpoint latest."
        )
    elif isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename} cannot be used: {error.strerror}."
    elif isinstance(error, Explained):
        text = " ".join([str(error), *getattr(error, "__notes__", ())])  # in which phase
    elif type(error).__name__ == "SafetensorError":  # whose package need not be there
        text = f"The weights of a model are damaged or cut off ({error}). Get its files anew."
    elif isinstance(error, ValueError | OSError | ImportError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}. --traceback shows where."
    return redact(" ".join(text.split()))


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, which may go on for a page, to be quoted
    within brackets."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # "... from one of:" announces a list that is not quoted
    return lines[0].strip().rstrip(".:").removesuffix(" from one of")


def cause(error: BaseException) -> str:
    """Return what went wrong in code that is not ours."""
    if isinstance(error, SystemExit):
        return f"sys.exit({'' if error.code is None else error.code})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def retold(message: str) -> str:
    """Return what argparse says of a command line as a sentence that starts with the option and has
    the user's value."""
    message = message.removesuffix(".")
    for pattern, sentence in _ARGPARSE.items():
        if match := re.fullmatch(pattern, message, re.DOTALL):
            option, *others = match.groups()
            kind = {"float": "a number", "int": "a whole number", "positive": "a whole number"}
            values = [kind.get(text, text) for text in others]
            return sentence.format(option.partition("/")[0], *values)
    return f"{message}."


def place_of(error: BaseException, file: str | None = None) -> str:
    """Return where an error arose: its last line in a file, or the last of all."""
    frames = traceback.extract_tb(error.__traceback__)
    last = ([frame for frame in frames if frame.filename == file] or frames)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"


def as_typed(text: str, words: Sequence[str]) -> str:
    """Return an error message with advice in the user's syntax: `key: value` becomes `--key value`
    if one of the settings that it names was given as an option among the words."""
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    typed = {option.removeprefix("--").replace("-", "_") for option in options}
    if typed.isdisjoint(re.findall(r"\w+", text)):
        return text
    return re.sub(r"`(\w+): ([^`]+)`", r"`--\1 \2`", text)


def tell(error: Exception, command: str, words: Sequence[str] = ()) -> int:
    """Print the error that ended a command, and return the exit code. `words` are those of the
    command line.

    Of several processes the first speaks, whose end ends the others. They speak only if it has
    nothing to say.
    """
    if int(os.environ.get("RANK") or 0) > 0:
        time.sleep(_PATIENCE_SECONDS)
    if os.environ.get(TRACEBACK):
        print(redact("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    text = as_typed(describe(error), words)
    print(f"{f'trl-miner {command}'.strip()}: error: {text}", file=sys.stderr, flush=True)
    return EXIT_CODE
