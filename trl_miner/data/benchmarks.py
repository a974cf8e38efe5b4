"""The benchmarks: one table. Adding a benchmark means adding a row."""

from dataclasses import dataclass
from typing import Any

from .problems import Problem as Problem
from .prompts import Kind
from .settings import DataArguments


@dataclass(frozen=True)
class Benchmark:
    """Where the problems of a benchmark come from, and how they are asked and graded."""

    name: str  # what users type, and the name of its folder
    title: str  # in the paper's tables
    grader: Kind  # also the kind of prompt
    samples: int  # per problem in the paper
    hub: str = ""  # id of the data set on the Hub; "": not there
    split: str = "test"
    problems: int | None = None  # how many it must have; None: any number

    @property
    def kind(self) -> Kind:
        """The kind of prompt, for `build_prompt`."""
        return self.grader


BENCHMARKS: dict[str, Benchmark] = {}


def read_problems(
    entry: str, args: DataArguments | None = None
) -> tuple[Benchmark, list[Problem], dict[str, Any]]:
    """Read the problems of a benchmark: NAME, NAME=PATH for a file or folder, `:N` behind either
    for its first N problems.

    Args:
        entry: Such as `aime24`, `math500:100`, `mine=problems.csv`.
        args: What the columns of one's own file are called; the usual names without it.

    Returns:
        The benchmark, its problems, and a record of their source: {"hub", "configs", "split",
        "commit"} or {"files": {name: sha256}}.

    Raises:
        ValueError: There is no such benchmark or file, or its rows are not understood.
    """
    raise NotImplementedError
