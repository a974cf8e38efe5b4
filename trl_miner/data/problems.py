"""Problems: where they come from, how rows become problems, and whether the grader accepts their
golds."""

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal

from ..common.network import not_loaded
from ..common.progress import Progress
from ..grading import grade
from ..grading.choices import option_index
from ..grading.math_answers import gold_content
from .columns import Cell, choice, number_options, read, text
from .prompts import Kind
from .reading import Row, find_files, read_file
from .references import read_reference


@dataclass(frozen=True)
class Problem:
    """A question with its gold answer."""

    id: str  # unique within its benchmark
    question: str  # without options and context
    # the gold: LaTeX for the grader "math", a letter for "choice", any text for "task"
    solution: str
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
    first_option: int | None = None  # its number in golds that are numbers, if no row tells
    decimal_comma: bool = False  # 15,50 is 15.5, in answers too
    prompt: Kind | None = None  # None: the kind named like the grader
    path: str | None = None  # local file of a user's own benchmark

    @property
    def kind(self) -> Kind:
        """The kind of prompt, for `build_prompt`."""
        return self.prompt or self.grader

    def choice(self, row: Row) -> tuple[Any, tuple[str, ...]] | None:
        """Return gold and options of a row; None: it has no options."""
        if self.options is None:
            return None
        return read(self.solution, row), tuple(read(self.options, row))


def read_rows(
    benchmark: Benchmark, local: str | Path | None = None
) -> tuple[list[Row], dict[str, Any]]:
    """Read all rows of a benchmark, and return them with the record of where they came from.

    `local` is a file, or a folder of files, with the same rows; None reads the Hub. The record of
    the Hub has "hub", "configs", "split" and "commit" (None where `datasets` does not give it);
    that of files is {"files": {name: sha256}}.
    """
    with Progress(f"reading {local or benchmark.hub}", unit="", leave=False):
        if local is None:
            return _read_hub(benchmark)
        files = find_files(Path(local), benchmark.split)
        rows = [row for file in files for row in read_file(file)]
        return rows, {
            "files": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        }


def _read_hub(benchmark: Benchmark) -> tuple[list[Row], dict[str, Any]]:
    from datasets import load_dataset

    rows: list[Row] = []
    record: dict[str, Any] = {
        "hub": benchmark.hub,
        "configs": list(benchmark.configs),
        "split": benchmark.split,
    }
    for config in benchmark.configs or (None,):
        try:
            loaded = load_dataset(benchmark.hub, config, split=benchmark.split)
        except (OSError, ValueError) as error:  # the network, and an unknown name, config or split
            raise ValueError(
                f"{benchmark.title} (config {config}, split {benchmark.split}) cannot be loaded."
                f" {not_loaded('data set', benchmark.hub, error)}"
                " Connect to the network once, so that it is cached, or give a local file:"
                f" eval --benchmarks {benchmark.name}=PATH, data --local {benchmark.name}=PATH."
            ) from error
        rows += loaded.to_list()
        # Keys such as hf://datasets/owner/name@<commit>/data/test.parquet
        match = re.search(r"@([0-9a-f]{40})/", " ".join(loaded.info.download_checksums or {}))
        record["commit"] = match[1] if match else None
    return rows, record


def read_problems(
    benchmark: Benchmark, rows: Iterable[Row], unreadable: list[int] | None = None
) -> list[Problem]:
    """Read the problems from the rows of a data set, in order. Their golds and their number are not
    checked.

    With `unreadable`, the index of a row whose content is not understood is appended to it;
    otherwise it is an error.
    """
    problems: list[Problem] = []
    row_of_id: dict[str, int] = {}
    rows = [*rows]
    first = number_options(rows, benchmark.choice, benchmark.first_option)
    for index, row in enumerate(rows):
        try:
            if benchmark.keep is not None and not benchmark.keep(row):
                continue
            problem = _read_problem(benchmark, index, row, first)
        except KeyError as error:
            raise ValueError(
                f"{benchmark.title} needs the column {error.args[0]}: row {index} has"
                f" {', '.join(map(str, row))}."
            ) from error
        except (TypeError, ValueError) as error:
            if unreadable is None:
                raise ValueError(f"{benchmark.title}, row {index}: {error}") from error
            unreadable.append(index)
            continue
        if problem.id in row_of_id:
            raise ValueError(
                f"{benchmark.title} has an id twice: rows {row_of_id[problem.id]} and {index} are"
                f" both {problem.id}."
            )
        row_of_id[problem.id] = index
        problems.append(problem)
    return problems


def fingerprint(problems: Iterable[Problem]) -> str:
    """Return the sha256 of all that decides on prompts and scores: ids, questions, golds, options
    and contexts."""
    digest = hashlib.sha256()
    for problem in problems:
        fields = [problem.id, problem.question, problem.solution, list(problem.options)]
        fields += [problem.context] if problem.context else []
        digest.update(json.dumps(fields).encode() + b"\n")
    return digest.hexdigest()


def _read_problem(benchmark: Benchmark, index: int, row: Row, first: int | None) -> Problem:
    def text_of(cell: Cell | None) -> str:
        return "" if cell is None else text(read(cell, row))

    question = read(benchmark.question, row)
    options = () if benchmark.options is None else tuple(read(benchmark.options, row))
    gold = read(benchmark.solution, row)
    problem = Problem(
        id=text(row.get(benchmark.id or "")) or f"{benchmark.name}-{index}",
        question=question if benchmark.kind == "verbatim" else text(question),
        solution=choice(gold, options, first),
        options=options,
        level=text(row.get(benchmark.level or "")) or None,
        context=text_of(benchmark.context),
        task=text_of(benchmark.task),
    )
    for name, value in (("question", problem.question), ("gold", problem.solution)):
        if not value:
            raise ValueError(f"a {name} must not be empty. Drop the row, or complete it.")
    if benchmark.grader == "choice" and option_index(problem.solution, options) is None:
        raise ValueError(
            f"the reference answer must be one of {len(options)} options: got {problem.solution!r}. Correct it."
        )
    return problem


def accepts_gold(
    grader: str, problems: Sequence[Problem], title: str = "checking reference answers"
) -> list[bool]:
    """Return for each problem whether the grader can accept an answer to it.

    For "math" the gold must be read as a value or a short name, since its own words say nothing.
    For "choice" either the letter alone or the letter with the text must be accepted: where the
    text of an option is the letter of another, as with blood groups, the letter alone is ambiguous.
    """
    if grader == "math":
        return [not read_reference(problem.solution).fault for problem in problems]
    if not problems:
        return []
    golds = [problem.task if grader == "task" else problem.solution for problem in problems]
    options = [problem.options for problem in problems] if grader == "choice" else None
    accepted = [False] * len(problems)
    tries = [*zip(*(own_answers(grader, problem) for problem in problems), strict=True)]
    with Progress(title, len(tries) * len(problems), unit="answers", leave=False) as progress:
        for texts in tries:
            verdicts = grade(grader, texts, golds, options=options, advance=progress.update)
            accepted = [
                was_accepted or verdict.is_correct is True
                for was_accepted, verdict in zip(accepted, verdicts, strict=True)
            ]
    return accepted


def own_answers(grader: str, problem: Problem) -> tuple[str, ...]:
    """Return texts that give the gold of a problem as their answer."""
    if grader != "choice":
        return (
            (
                f"<answer>{problem.solution}</answer>"
                if grader == "task"
                else f"\\boxed{{{gold_content(problem.solution)}}}"
            ),
        )
    index = option_index(problem.solution, problem.options)
    if index is None:
        return "", ""
    letter = ascii_uppercase[index]
    return f"The answer is {letter}.", f"The answer is ({letter}) {problem.options[index]}."


def check_golds(title: str, grader: str, problems: Sequence[Problem]) -> None:
    """Warn if the grader rejects golds, naming the first few; if it rejects more than half, raise
    ValueError."""
    accepted = accepts_gold(grader, problems, f"checking reference answers of {title}")
    rejected = [index for index, is_accepted in enumerate(accepted) if not is_accepted]
    shown = "; ".join(
        f"problem {i} (id {problems[i].id}): {problems[i].solution!r}" for i in rejected[:5]
    )
    message = (
        f"The grader {grader!r} must be able to accept an answer to every reference answer of {title}: it"
        f" cannot for {len(rejected)} of {len(problems)}, {shown}."
    )
    if 2 * len(rejected) > len(problems):
        raise ValueError(f"{message} Correct them.")
    if rejected:
        warnings.warn(f"{message} They count as never solved.", stacklevel=4)
