"""What a run is doing now, and the signs of life that it gives: for the watchdog, if one watches."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

TRAINING_STEP, GENERATION = "training step", "generation"


class Phase(NamedTuple):
    """A part of a run that is under way: its name, and a folder that grows while it makes progress."""

    name: str
    growing: Path | None = None


# called at every beat of this process, in the thread that beats; they must return at once
listeners: set[Callable[[], None]] = set()
phases: list[Phase] = []  # of the main thread, the innermost last


def beat() -> None:
    """Report progress to the watchdog. Call it from code that runs for minutes, such as a slow reward function.

    Without a watchdog it does nothing.
    """
    for listener in tuple(listeners):  # a copy: the watchdog's thread may remove itself meanwhile
        listener()


@contextlib.contextmanager
def phase(name: str, steps: int, growing: Path | None = None) -> Iterator[None]:
    """Name what the main thread does inside the block. An exception that leaves it gets a note of phase and step.

    Args:
        name: Of the phase.
        steps: Optimizer steps that the run has done.
        growing: A folder that changes its size while the phase makes progress.
    """
    phases.append(Phase(name, growing))
    beat()
    try:
        yield
    except Exception as error:
        note = "This happened in phase "
        if not any(line.startswith(note) for line in getattr(error, "__notes__", ())):
            error.add_note(f"{note}'{name}', {place(steps)}.")
        raise
    finally:
        phases.pop()
        beat()


def is_in(name: str) -> bool:
    """Return whether a phase of this name is under way, perhaps with another one inside it."""
    return any(one.name == name for one in tuple(phases))


def place(steps: int) -> str:
    """Return where a run is that has done so many optimizer steps."""
    return f"step {steps + 1}" if is_in(TRAINING_STEP) else f"after step {steps}"
