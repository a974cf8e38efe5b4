"""The tools and environments of a recipe: what they must have before a training, and how long one call may take.

TRL hands the text of an exception to the model as the tool's result and counts the call as failed. What it does not
survive is turned into an exception here: a call that hangs, that exits, or whose result has no text. A call stays in
the thread that TRL makes it in, so that it never outlives its limit, and an environment is never in two calls at once.
"""

import asyncio
import ctypes
import inspect
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache, partial, wraps
from itertools import chain, repeat
from typing import Any

from .alarm import kernel_alarm
from .errors import first_line
from .heartbeat import beat
from .importing import import_object

logger = logging.getLogger(__name__)

TOOL_SECONDS = 10.0
MAX_CHARACTERS = 200_000  # of a result: no completion holds more, and TRL would tokenize all of it
_AGAIN_SECONDS = 1.0  # to the next attempt, where a call has swallowed the first
_PATIENCE = 10  # attempts before a warning
_NOT_TOOLS = ("reset", "get_reward")  # methods of an environment that TRL calls itself


class _TimeIsUp(BaseException):
    """Ends a call; no `except Exception` of a tool swallows it."""


def load_tools(paths: Collection[str], seconds: float) -> list[Callable[..., Any]]:
    """Return the tools that a recipe names, each with a time limit.

    Args:
        paths: Their import paths.
        seconds: Of wall time for one call.

    Raises:
        ValueError: A path leads nowhere or to no tool, or two tools have one name.
    """
    tools: dict[str, Callable[..., Any]] = {}
    for path in paths:
        tool = import_object("tools", path)
        _check_tool("tools", path, tool)
        if tool.__name__ in tools:
            raise ValueError(
                f"tools must have different names, by which the model calls them: got two called {tool.__name__!r}, "
                f"one of them {path}. Rename it, or leave it out."
            )
        tools[tool.__name__] = limited(tool, seconds)
    return [*tools.values()]


def load_environments(
    named: str | Mapping[str, str],
    seconds: float,
    columns: Collection[str] | None,
    tools: Collection[Callable[..., Any]] = (),
) -> Any:
    """Return what TRL takes as `environment_factory`: environments whose tools have a time limit.

    Args:
        named: An import path, or several by the names in the data set's column `environment`.
        seconds: Of wall time for one call of a tool.
        columns: Those of the data set, which `reset` must take; None: not known.
        tools: The functions beside them, as `load_tools` returns them.

    Raises:
        ValueError: A path leads nowhere or to no environment, or an environment has a tool of the name of another.
    """
    if isinstance(named, Mapping):
        # TRL hands on the column that chooses the environment no further
        rest = columns and [name for name in columns if name != "environment"]
        return {name: load_environments(path, seconds, rest, tools) for name, path in named.items()}
    factory = import_object("environment_factory", named)
    if not callable(factory):
        raise ValueError(
            f"environment_factory must be a class, or a function that returns an environment: {named} is a "
            f"{type(factory).__name__}. Name the class."
        )
    if inspect.isclass(factory):  # what a function returns is known only once it is called, which may cost much
        _check_environment(named, factory, columns)
        if twice := {*_tool_names(factory)} & {tool.__name__ for tool in tools}:
            raise ValueError(
                f"tools must have different names, by which the model calls them: got {min(twice)!r} twice, in tools "
                f"and as a method of {named}. Rename one of them, or leave it out."
            )
    return partial(_make_limited, factory, seconds)


def check_prompts(setting: str, prompt: Any) -> None:
    """Refuse prompts of plain text, in which TRL mentions no tool, and finds no call."""
    if isinstance(prompt, str):
        raise ValueError(
            f"{setting} needs prompts that are messages: got plain text, {prompt[:40]!r}. Set prompt_style: chat, or "
            f"write messages into the data set."
        )


def check_template(setting: str, tokenizer: Any) -> None:
    """Refuse a model whose chat template cannot show a tool's call and its result."""
    from trl.chat_template_utils import supports_tool_calling

    if not supports_tool_calling(tokenizer):
        what = "one that leaves them out" if getattr(tokenizer, "chat_template", None) else "no chat template"
        raise ValueError(
            f"{setting} needs a model whose chat template shows the calls of tools and their results: got {what}. "
            f"Choose a model that was trained with tools, such as Qwen/Qwen3-0.6B."
        )


def _check_tool(setting: str, path: str, tool: Any) -> None:
    """Refuse what the model cannot be told of: it gets a tool's name, its docstring and the types of its arguments."""
    from transformers.utils import get_json_schema

    if not callable(tool) or inspect.isclass(tool) or not hasattr(tool, "__name__"):
        raise ValueError(
            f"{setting} must be functions: {path} is {'a class' if inspect.isclass(tool) else type(tool).__name__}. "
            f"Name a function; a class that holds a state is an environment_factory."
        )
    try:
        get_json_schema(tool)
    except Exception as error:  # it has several of its own
        raise ValueError(
            f"{setting} must have a type for each argument, and a docstring that describes the function and each "
            f"argument: {path} does not ({first_line(error)}). Write it in Google's style, with a section `Args:`."
        ) from error


def _check_environment(path: str, environment: type, columns: Collection[str] | None) -> None:
    reset = getattr(environment, "reset", None)
    if not inspect.isfunction(reset):
        raise ValueError(
            f"An environment must have a method reset, which is called before each rollout: {path} has none. Write "
            f"`def reset(self, **row)`; what it returns is added to the prompt."
        )
    try:
        if columns is not None:
            inspect.signature(reset).bind(None, **dict.fromkeys(columns))
    except TypeError as error:
        raise ValueError(
            f"reset of {path} must take the columns of the data set, {', '.join(columns or ())}: {first_line(error)}. "
            f"Write `def reset(self, **row)`."
        ) from error
    for name in _tool_names(environment):
        _check_tool("The tools of an environment", f"{path}.{name}", getattr(environment, name))


def _tool_names(environment: type) -> list[str]:
    """Return the methods that TRL offers as tools."""
    named = inspect.getmembers(environment, predicate=inspect.isfunction)
    return [name for name, _ in named if name not in _NOT_TOOLS and not name.startswith("_")]


def _make_limited(factory: Callable[[], Any], seconds: float) -> Any:
    environment = factory()
    own: Any = type(environment)
    environment.__class__ = _limited_class(own, seconds)
    return environment


@lru_cache
def _limited_class(environment: Any, seconds: float) -> type:
    """Return a subclass of the same name, by which TRL logs its reward, whose tools have a time limit."""
    tools = {name: limited(getattr(environment, name), seconds) for name in _tool_names(environment)}
    return type(environment.__name__, (environment,), {"__slots__": (), **tools})  # else an object cannot change to it


def limited(tool: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Return a tool whose calls end after some seconds, with an exception that TRL survives if they end badly.

    Python's own code, sleep and waiting for files, sockets and processes are ended, whatever alarms the tool sets
    itself. Not ended are a library's computation, such as `9**9**9`, a tool that swallows every exception, and sleep
    and waiting outside of the main thread or with signals blocked: such a call fails once it returns. An async tool
    is ended where it awaits.
    """
    said: set[type] = set()  # what has been warned of

    def survive(error: BaseException) -> Exception:
        beat()
        if isinstance(error, _TimeIsUp | asyncio.TimeoutError):
            error = TimeoutError(f"{tool.__name__} took longer than {seconds:g} seconds")
        elif not isinstance(error, Exception):
            error = RuntimeError(f"{tool.__name__} ended with {type(error).__name__}")
        if type(error) not in said:
            said.add(type(error))
            logger.warning(
                f"A call of the tool {tool.__name__} failed: {type(error).__name__}: {first_line(error)}. The model "
                f"gets this as the result, and tools/failure_frequency counts it. No more is said of such calls."
            )
        return error

    if inspect.iscoroutinefunction(tool):

        @wraps(tool)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            end = time.monotonic() + seconds
            try:
                result = _as_content(await asyncio.wait_for(tool(*args, **kwargs), seconds))
                if time.monotonic() >= end:  # it never awaited, or went on after it was cancelled
                    raise _TimeIsUp
                return result
            except (Exception, _TimeIsUp, SystemExit) as error:
                raise survive(error) from error
            finally:
                beat()

        return call_async

    @wraps(tool)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with _alarm(tool.__name__, seconds):
                return _as_content(tool(*args, **kwargs))
        except (Exception, _TimeIsUp, SystemExit) as error:
            raise survive(error) from error
        finally:
            beat()

    return call


def _as_content(result: Any) -> Any:
    """Return a result as TRL puts it into a message: blocks of text and images as they are, all else as text.

    TRL would convert it where an exception ends the run, and take any list for blocks.

    Raises:
        ValueError: The text is too long.
    """
    if isinstance(result, list) and result and all(isinstance(part, dict) and "type" in part for part in result):
        return result
    text = str(result)
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the result has {len(text)} characters, and may have {MAX_CHARACTERS}")
    return text


@contextmanager
def _alarm(name: str, seconds: float) -> Iterator[None]:
    """Raise _TimeIsUp in the block after some seconds, again until it ends, and at its end if it was swallowed."""
    if not math.isfinite(seconds):
        yield
        return
    end, mask = time.monotonic() + seconds, signal.pthread_sigmask(signal.SIG_BLOCK, ())
    is_main = threading.current_thread() is threading.main_thread()
    try:
        with _bell(name, seconds), kernel_alarm(seconds, _AGAIN_SECONDS, _TimeIsUp) if is_main else nullcontext():
            yield
    finally:  # a call that was ended may have left signals blocked, Ctrl-C among them
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if time.monotonic() >= end:
        raise _TimeIsUp


@contextmanager
def _bell(name: str, seconds: float) -> Iterator[None]:
    """Raise _TimeIsUp in this thread from another one: where signals are blocked, or do not arrive."""
    thread_id, is_over, lock = threading.get_ident(), threading.Event(), threading.Lock()

    def ring() -> None:
        for number, wait in enumerate(chain([seconds + _AGAIN_SECONDS / 2], repeat(_AGAIN_SECONDS))):
            if is_over.wait(wait):
                return
            with lock:
                if not is_over.is_set():
                    _raise_in(thread_id, _TimeIsUp)
            if number == _PATIENCE:
                logger.warning(
                    f"The tool {name} does not end after {seconds:g} seconds (tool_seconds): it swallows every "
                    f"exception, or is inside a library. The run waits for it. Leave the tool out, or bound its work."
                )

    def stop() -> None:
        with lock:
            is_over.set()
            _raise_in(thread_id, None)  # what was raised and has not arrived

    threading.Thread(target=ring, name="trl_miner.tools", daemon=True).start()
    try:
        yield
    finally:
        while not is_over.is_set():
            with suppress(_TimeIsUp):
                stop()


def _raise_in(thread_id: int, error: type[BaseException] | None) -> None:
    """Raise an exception in a thread, before its next step of Python; None: take back one that has not arrived."""
    argument = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), argument)
