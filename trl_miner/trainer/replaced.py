"""Have TRL, transformers or vLLM find another value under a name, for as long as it takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute of an object or module another value meanwhile.

    An object whose attribute is its class's, such as a method, has none of its own afterwards.
    """
    own = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
