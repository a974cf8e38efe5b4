"""One picture of runs: reward, kinds of prompts, completions with a gradient, scores."""

from collections.abc import Sequence
from pathlib import Path

from .runs import RunLog


def draw(runs: Sequence[RunLog], path: str | Path) -> None:
    """Draw the metrics that some run has logged, and save the picture as a file.

    Runs that differ in nothing but their seed become one line, their mean, with a band from the
    lowest to the highest.

    Args:
        runs: At least one.
        path: Of the picture; its ending (.png, .svg) says the format.
    """
    raise NotImplementedError
