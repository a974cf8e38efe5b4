"""The tools and environments of a recipe, and how long one call may take.

TRL hands the text of an exception to the model as the tool's result and counts the call as failed.
What it does not survive becomes an exception here: a call that hangs, that exits, or whose result
has no text.
"""

import asyncio
import inspect
import math
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

from .common.heartbeat import beat
from .common.importing import import_object

TOOL_SECONDS = 10.0
_AGAIN_SECONDS = 1.0  # to the next attempt, where a call has swallowed the first
# Whether a tool is being called: another one that it calls returns its result as it is, not as
# text.
_is_running: ContextVar[bool] = ContextVar("_is_running", default=False)
_NOT_TOOLS = ("reset", "get_reward")  # methods of an environment that TRL calls itself


class _TimeIsUp(BaseException):
    """Ends a call; no `except Exception` of a tool swallows it."""


def load_tools(paths: Collection[str], seconds: float) -> list[Callable[..., Any]]:
    """Return the tools that a recipe names by import path, each with a time limit in seconds for
    one call."""
    return [limited(import_object("tools", path), seconds) for path in paths]


def load_environments(named: str | Mapping[str, str], seconds: float) -> Any:
    """Return what TRL takes as `environment_factory`: environments whose tools have a time limit.

    `named` is an import path, or several by the names in the data set's column `environment`.
    """
    if isinstance(named, Mapping):
        return {name: load_environments(path, seconds) for name, path in named.items()}
    return partial(_make_limited, import_object("environment_factory", named), seconds)


def check_prompts(setting: str, prompt: Any) -> None:
    """Refuse prompts of plain text, in which TRL mentions no tool, and finds no call."""
    if isinstance(prompt, str):
        raise ValueError(
            f"{setting} needs messages: got plain text, {prompt[:40]!r}. Set prompt_style: chat."
        )


def _make_limited(factory: Callable[[], Any], seconds: float) -> Any:
    environment = factory()
    for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction):
        if name not in _NOT_TOOLS and not name.startswith("_"):
            setattr(environment, name, limited(getattr(environment, name), seconds))
    return environment


def limited(tool: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Return a tool whose calls end after some seconds, with an exception that TRL survives if they
    end badly.

    Not ended are a library's computation, such as `9**9**9`, a tool that sets SIGALRM itself, and
    calls outside of the main thread. An async tool is ended where it awaits.
    """
    failing = partial(_failing, tool.__name__, seconds)

    @wraps(tool)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_running.get():
            return tool(*args, **kwargs)
        with failing(), _alarm(seconds):
            return _as_content(tool(*args, **kwargs))

    @wraps(tool)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        if _is_running.get():
            return await tool(*args, **kwargs)
        with failing():
            return _as_content(await asyncio.wait_for(tool(*args, **kwargs), seconds))

    return call_async if inspect.iscoroutinefunction(tool) else call


@contextmanager
def _failing(name: str, seconds: float) -> Iterator[None]:
    """Raise an exception that TRL survives where a call ends badly."""
    token = _is_running.set(True)
    try:
        yield
    except (TimeoutError, _TimeIsUp) as error:
        raise TimeoutError(f"{name} took longer than {seconds:g} seconds") from error
    except SystemExit as error:
        raise RuntimeError(f"{name} ended with SystemExit") from error
    finally:
        _is_running.reset(token)
        beat()


def _as_content(result: Any) -> Any:
    """Return a result as TRL puts it into a message: blocks of text and images as they are, all
    else as text.

    TRL would convert it where an exception ends the run, and take any list for blocks.
    """
    is_list = isinstance(result, list) and len(result) > 0
    return (
        result
        if is_list and all(isinstance(part, dict) and "type" in part for part in result)
        else str(result)
    )


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise _TimeIsUp in the block after some seconds, and again until it ends; in the main thread
    alone."""
    if threading.current_thread() is not threading.main_thread() or not math.isfinite(seconds):
        yield
        return
    is_on = True

    def ring(*_: Any) -> None:
        if is_on:
            raise _TimeIsUp

    handler = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        yield
    finally:
        is_on = False
        signal.setitimer(signal.ITIMER_REAL, *timer)  # of a tool that called this one
        signal.signal(signal.SIGALRM, handler)
