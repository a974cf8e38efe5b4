"""A mistake of the user's, told in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

MISTAKE, FAILED, INTERRUPTED, TERMINATED = 2, 1, 130, 143  # exit codes


@contextmanager
def told_in_one_line(command: str) -> Iterator[None]:
    """Tell a ValueError, OSError or ImportError in one line on stderr, and exit with 2.

    Of several processes the first speaks. With `--traceback` the traceback comes first.
    """
    yield
