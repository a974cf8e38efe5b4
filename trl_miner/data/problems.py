"""Problems, and how the rows of a data set become problems."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from .columns import Cell, read, text
from .prompts import Kind
from .reading import Row, Source


@dataclass(frozen=True)
class Problem:
    """A question with its gold answer."""

    id: str  # unique within its benchmark
    question: str  # without options and context
    solution: str  # the gold: LaTeX for the grader "math", a letter for "choice", any text for "task"
    options: tuple[str, ...] = ()  # texts of the choices A, B, ...
    level: str | None = None  # difficulty or subject, where the data set has one
    context: str = ""  # what the question is about, shown before it
    task: str = ""  # the whole problem, for the grader "task"


@dataclass(frozen=True)
class Benchmark:
    """Where the problems of a benchmark come from, and how they are asked and graded."""

    name: str  # what users type, and the name of its folder
    title: str  # in the paper's tables
    hub: str  # id of the data set on the Hub; "": not there
    split: str
    problems: int | None  # how many it must have; None: any number
    grader: Literal["math", "choice", "task"]
    samples: int  # per problem in the paper
    question: Cell
    solution: Cell
    options: Cell | None = None
    context: Cell | None = None
    id: str | None = None  # a column, as the next; rows may lack both
    level: str | None = None
    task: Cell | None = None
    configs: tuple[str, ...] = ()  # of the data set; (): the default one
    keep: Callable[[Row], bool] | None = None  # which rows belong to it; None: all
    revision: str = "main"
    prompt: Kind | None = None  # None: the kind named like the grader
    path: str | None = None  # local file of a user's own benchmark

    @property
    def kind(self) -> Kind:
        """The kind of prompt, for `build_prompt`."""
        return self.prompt or self.grader

    def source(self, revision: str | None = None) -> Source:
        """Return the data set on the Hub, at another revision if one is given."""
        return Source(self.hub, self.split, self.configs, revision or self.revision)


def read_problems(benchmark: Benchmark, rows: Iterable[Row], unreadable: list[int] | None = None) -> list[Problem]:
    """Read the problems from the rows of a data set, in order. Their golds and their number are not checked.

    Errors name the row. With `unreadable`, for training data with a few bad rows, the index of a row whose content is
    not understood is appended to it instead.
    """
    problems: list[Problem] = []
    row_of_id: dict[str, int] = {}
    for index, row in enumerate(rows):
        try:
            if benchmark.keep is not None and not benchmark.keep(row):
                continue
            problem = _read_problem(benchmark, index, row)
        except KeyError as error:
            raise ValueError(
                f"{benchmark.title} needs the column {error.args[0]}: row {index} has {', '.join(map(str, row))}. "
                f"Rename a column."
            ) from error
        except (TypeError, ValueError) as error:
            if unreadable is None:
                raise ValueError(f"{benchmark.title}, row {index}: {error}") from error
            unreadable.append(index)
            continue
        if problem.id in row_of_id:
            raise ValueError(
                f"Every problem of {benchmark.title} needs its own id: rows {row_of_id[problem.id]} and {index} "
                f"are both {problem.id}. Drop one, or give it another id."
            )
        row_of_id[problem.id] = index
        problems.append(problem)
    return problems


def fingerprint(problems: Iterable[Problem]) -> str:
    """Return the sha256 of all that decides on prompts and scores: ids, questions, golds, options and contexts."""
    digest = hashlib.sha256()
    for problem in problems:
        fields = [problem.id, problem.question, problem.solution, list(problem.options)]
        fields += [problem.context] if problem.context else []
        digest.update(json.dumps(fields).encode() + b"\n")
    return digest.hexdigest()


def _read_problem(benchmark: Benchmark, index: int, row: Row) -> Problem:
    def text_of(cell: Cell | None) -> str:
        return "" if cell is None else text(read(cell, row))

    question = read(benchmark.question, row)
    problem = Problem(
        id=text(row.get(benchmark.id or "")) or f"{benchmark.name}-{index}",
        question=question if benchmark.kind == "verbatim" else text(question),
        solution=text_of(benchmark.solution),
        options=() if benchmark.options is None else tuple(read(benchmark.options, row)),
        level=text(row.get(benchmark.level or "")) or None,
        context=text_of(benchmark.context),
        task=text_of(benchmark.task),
    )
    for name, value in (("question", problem.question), ("gold", problem.solution)):
        if not value:
            raise ValueError(f"a {name} must not be empty. Drop the row, or complete it.")
    if benchmark.grader == "choice" and ord(problem.solution) - ord("A") >= len(problem.options):
        raise ValueError(
            f"the gold must be one of {len(problem.options)} options: got {problem.solution}. Correct it."
        )
    return problem
