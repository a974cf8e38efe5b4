"""The mathematical training set: DeepScaleR-Preview (arXiv 2601.04731 trains on it)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from .problems import Benchmark, Problem
from .sources import read_part
from .training_set import Options, Written, write_training_set

DEEPSCALER = Benchmark(
    "deepscaler", "DeepScaleR", "agentica-org/DeepScaleR-Preview-Dataset", "train", None, "math", 1,
    question="problem", solution="answer",
)  # fmt: skip


def build_deepscaler(
    folder: str | Path,
    options: Options,
    *,
    benchmarks: Mapping[str, Sequence[Problem]],
    source: str | Path | None = None,
    revision: str | None = None,
) -> Written:
    """Write the training set: columns `prompt`, `solution`, `id`, `source`.

    Args:
        folder: Where to.
        options: How to make it.
        benchmarks: What to compare with, by name; the paper's are in `MATH_BENCHMARKS`.
        source: A local file or folder in the format of the data set; None: from the Hub.
        revision: Of the data set on the Hub; None: main.

    Raises:
        ConnectionError: The Hub cannot be reached.
        ValueError: See `write_training_set` and `read_part`.
    """
    part = read_part(DEEPSCALER, source, revision)
    title = "DeepScaleR-Preview for trl_miner"
    return write_training_set(folder, title, [part], options, kind="math", grader="math", benchmarks=benchmarks)
