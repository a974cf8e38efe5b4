"""The mathematical training set: DeepScaleR-Preview (arXiv 2601.04731 trains on it)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from .problems import Benchmark, Problem
from .training_set import Options, Written, read_part, write_training_set

DEEPSCALER = Benchmark(
    "deepscaler",
    "DeepScaleR",
    "agentica-org/DeepScaleR-Preview-Dataset",
    "train",
    None,
    "math",
    1,
    question="problem",
    solution="answer",
)
MATH_BENCHMARKS = ("aime24", "aime25", "amc23", "hmmt25", "math500", "olympiadbench")


def build_deepscaler(
    folder: str | Path,
    options: Options,
    *,
    benchmarks: Mapping[str, Sequence[Problem]],
    source: str | Path | None = None,
    revision: str | None = None,
) -> Written:
    """Write the training set, with the columns `prompt`, `solution`, `id` and `source`."""
    part = read_part(DEEPSCALER, source, revision)
    title = "DeepScaleR-Preview for trl_miner"
    return write_training_set(folder, title, [part], options, grader="math", benchmarks=benchmarks)
