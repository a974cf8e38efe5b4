"""What a run is doing now, and the signs of life that it gives: for the watchdog, if one
watches."""

import contextlib
from collections.abc import Iterator

TRAINING_STEP, GENERATION, CHECKPOINT = "training step", "generation", "checkpoint"

beats = 0  # signs of life that this process has given
phases: list[str] = []  # of the main thread, the innermost last


def beat() -> None:
    """Report progress to the watchdog. Call it from code that runs for minutes, such as a slow
    reward function.

    Without a watchdog it does nothing.
    """
    global beats
    beats += 1


@contextlib.contextmanager
def phase(name: str, steps: int) -> Iterator[None]:
    """Name what the main thread does inside the block. An exception that leaves it gets a note of
    phase and step.

    Args:
        name: Of the phase.
        steps: Optimizer steps that the run has done.
    """
    phases.append(name)
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


def place(steps: int) -> str:
    """Return where a run is that has done so many optimizer steps."""
    return f"step {steps + 1}" if TRAINING_STEP in phases else f"after step {steps}"
