"""Your own data set: which columns hold the questions and the golds, and how they become prompts."""

import csv
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..errors import first_line
from . import columns as c
from .golds import accepts_gold
from .prompts import Kind, PromptForm, build_prompt
from .reading import BUILDERS, Row, read_file, separator
from .worlds import WORLDS

GOLDS = 20  # of a training set are graded before the training
GRADERS = {"math_reward": "math", "choice_reward": "choice", "task_reward": "task"}  # by the name of the reward
_SHOWN = 5  # rows that an error names


@dataclass(frozen=True)
class Layout:
    """What the columns of a data set are called, and how its questions become prompts."""

    prompt: str = "prompt"
    solution: str = "solution"
    options: str = "options"
    answer_pattern: str | None = None  # the gold is its last match in the column `solution`, or that one's first group
    form: PromptForm = PromptForm()  # its style does not count

    def __post_init__(self) -> None:
        try:
            re.compile(self.answer_pattern or "")
        except re.error as error:
            raise ValueError(
                f"answer_pattern must be a regular expression: got {self.answer_pattern!r} ({error}). GSM8K's is "
                f"'#### (.+)'."
            ) from error

    @property
    def builds_prompts(self) -> bool:
        """Whether the column with the prompts holds questions, from which they are yet to be built."""
        return self.prompt != "prompt" or self.form.is_own

    def asked(self) -> dict[str, str]:
        """Return the columns that the data set must have, by setting; none: it stays as it is."""
        columns = {}
        if self.builds_prompts:
            columns["dataset_prompt_column"] = self.prompt
        if self.solution != "solution" or self.answer_pattern is not None:
            columns["dataset_solution_column"] = self.solution
        if self.options != "options":
            columns["dataset_options_column"] = self.options
        return columns


def file_arguments(name: str) -> dict[str, Any]:
    """Return the arguments of `datasets.load_dataset` for a data set: for a file, those of its format."""
    builder = _builder(name)
    if builder is None:
        return {"path": name}
    if builder != "csv":
        return {"path": builder, "data_files": name}
    with open(name, encoding="utf-8", errors="replace", newline="") as file:
        mark = separator(file.readline())
        file.seek(0)
        header, first = ([*islice(csv.reader(file, delimiter=mark), 2)] + [[], []])[:2]
    if len(first) > len(header):  # pandas would take the first cells for names of the rows
        raise ValueError(
            f"its first row has {len(first)} cells under {len(header)} names: cells with {mark!r} in them need quotes"
        )
    return {"path": builder, "data_files": name, "sep": mark}


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Raise ValueError with the next step where the data set of this name, or these names, cannot be loaded."""
    try:
        yield
    except Exception as error:  # the loaders of `datasets` may raise anything
        if _builder(name) and not read_file(Path(name)):
            raise ValueError(f"dataset_name must have rows: {name} has none. Add some.") from error
        why = error
        while isinstance(why.__cause__, Exception):
            why = why.__cause__
        raise ValueError(
            f"dataset_name must be a Hub id, a file, a folder, {' or '.join(WORLDS)}, or reasoning_gym/FAMILY: {name} "
            f"could not be loaded ({first_line(why)}). Correct it, or make the data set with `trl-miner data`."
        ) from error


def _builder(name: str) -> str | None:
    """Return what `datasets` calls the format of a local file; None: it is none."""
    path = Path(name)
    return BUILDERS.get(path.suffix.lower()) if path.is_file() else None


def arrange(data: Any, layout: Layout, rewards: Collection[str]) -> Any:
    """Return a data set with the columns `prompt`, `solution` and, where there are some, `options`.

    Args:
        data: A `Dataset` or an `IterableDataset`.
        layout: What its columns are called, and how a prompt is built; without a setting the data set stays as it is.
        rewards: Names of the reward functions. Without a template, a question with options is asked as the benchmarks
            of choice are, one for `math_reward` as those of mathematics, and any other as it stands.

    Raises:
        ValueError: A missing column, a question that is not text, or a gold that `answer_pattern` does not find.
    """
    asked, names = layout.asked(), data.column_names
    if not asked:
        return data
    for setting, name in asked.items():
        if names is not None and name not in names:  # those of a stream may not be known
            raise ValueError(f"{setting} must name a column: got {name!r}, and there are {', '.join(names)}.")
    kind: Kind = "math" if "math_reward" in rewards else "verbatim"
    # `datasets` would take prompts of an earlier version of this package from its cache.
    afresh = {"load_from_cache_file": False} if hasattr(data, "__len__") else {}
    return data.map(lambda row, place: _arranged(row, place, layout, kind), with_indices=True, **afresh)


def _arranged(row: Row, place: int, layout: Layout, kind: Kind) -> Row:
    """Return the columns of a row that are new."""
    # a row without one gets None: all rows must have the same columns
    new: Row = {name: None for name in ("options", "solution") if getattr(layout, name) in row}
    if row.get(layout.options) is not None:
        new["options"] = list(c.options(layout.options)(row))
    if row.get(layout.solution) is not None:
        new["solution"] = _gold(row, place, layout)
    if layout.builds_prompts:
        question = row[layout.prompt]
        if not isinstance(question, str) or not question.strip():
            raise ValueError(
                f"The column {layout.prompt} must hold a question as text: row {place}, counted from 0, has "
                f"{str(question)[:80]!r}. Drop the row; messages are prompts already, for which system_prompt and "
                f"prompt_template are not made."
            )
        options = new.get("options") or ()
        new["prompt"] = build_prompt("choice" if options else kind, question, options, form=layout.form)
    return new


def _gold(row: Row, place: int, layout: Layout) -> str:
    text = c.text(row[layout.solution])
    if layout.answer_pattern is None:
        return text
    found = [*re.finditer(layout.answer_pattern, text)]
    gold = (found[-1][1] if found[-1].re.groups else found[-1][0]) if found else None
    if not gold or not gold.strip():
        raise ValueError(
            f"answer_pattern must find an answer in every row of the column {layout.solution}: "
            f"{layout.answer_pattern!r} finds none in row {place}, which ends with {text[-80:]!r}. Correct it, or "
            f"drop such rows."
        )
    return str(gold).strip()


def check_answers(column: str, rows: Any) -> None:
    """Raise if a row of a data set has no answer; of a stream, whose rows are for the training, if a first one has."""
    values = list(rows["solution"] if hasattr(rows, "__len__") else (row["solution"] for row in islice(rows, GOLDS)))
    empty = [place for place, value in enumerate(values) if value != value or not c.text(value)]
    if empty:
        raise ValueError(
            f"The column {column} must hold an answer in every row: {len(empty)} of {len(values)} have none, such as "
            f"row {', '.join(map(str, empty[:_SHOWN]))} (counted from 0, below the header). Add it, or drop the rows."
        )


@dataclass(frozen=True)
class GoldCheck:
    """How many of the first golds a reward function accepts as answers, and which it rejects, in words."""

    accepted: int
    graded: int
    rejected: str

    @property
    def is_bad(self) -> bool:
        """Whether it rejects more than half: a wrong column, rather than some bad rows."""
        return 2 * self.accepted < self.graded


def check_first_golds(reward: str, data: Iterable[Row], rewards: Collection[str]) -> GoldCheck:
    """Grade the first golds of a training set as answers.

    `reward` is one of `GRADERS`; where both `math_reward` and `choice_reward` are among `rewards`, each has its own
    rows.
    """
    grader, rows = GRADERS[reward], list(enumerate(islice(data, GOLDS)))
    if {"math_reward", "choice_reward"} <= {*rewards}:
        rows = [(place, row) for place, row in rows if bool(row.get("options")) == (grader == "choice")]
    problems: list[Any] = [
        SimpleNamespace(
            solution=c.text(row["answer" if grader == "task" else "solution"]),
            options=row.get("options") or [],
            task=row.get("task"),
        )
        for _, row in rows
    ]
    bad = [
        f"row {place}: {problem.solution[-60:]!r}"
        for (place, _), problem, is_accepted in zip(rows, problems, accepts_gold(grader, problems), strict=True)
        if not is_accepted or (grader == "math" and _is_worked(problem.solution))
    ]
    rejected = (
        f"{reward} must accept every gold as an answer: it rejects {len(bad)} of the first {len(rows)} "
        f"({', '.join(bad[:_SHOWN])}). Set dataset_solution_column or answer_pattern, or drop these rows."
    )
    return GoldCheck(len(rows) - len(bad), len(rows), rejected)


def _is_worked(gold: str) -> bool:
    """Return whether a gold is a worked solution in which nothing marks the answer: the grader would accept itself."""
    return "\\boxed" not in gold and ("\n" in gold or "####" in gold)
