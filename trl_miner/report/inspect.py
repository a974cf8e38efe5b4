"""A page of prompts with their completions side by side, each token as dark as its credit."""

from collections.abc import Sequence
from pathlib import Path


def write_page(
    run: str | Path, output: str | Path | None = None, *, steps: Sequence[int] | None = None
) -> Path:
    """Write the page of a run's recorded tokens as one HTML file, and return its path.

    Args:
        run: The `output_dir` of a run with `log_token_credit`, or of one with `log_completions`:
            there each completion is as dark as its advantage.
        output: The file. Default: `inspect.html` in the run's folder.
        steps: Recorded steps to show. Default: all.

    Raises:
        ValueError: The run has recorded nothing, or nothing at these steps.
    """
    raise NotImplementedError
