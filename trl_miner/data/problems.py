"""Problems: questions with their reference answers, read from rows of any form."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from .columns import (
    Columns,
    cell,
    find_columns,
    is_messages,
    option_place,
    read_messages,
    read_options,
)
from .files import Row, as_text
from .prompts import Message, form_asked_for
from .settings import DataArguments

if TYPE_CHECKING:
    from datasets import Dataset

TRUE_OR_FALSE = {"A": "True", "B": "False"}
_MARKED = r"####\s*(.+)"  # the answer at the end of a worked solution, as in GSM8K


@dataclass(frozen=True)
class Problem:
    """A question with its reference answer."""

    id: str  # unique within its benchmark
    question: str | list[Message]  # without options and context; messages are prompts already
    solution: str  # a value or LaTeX for the grader "math", a letter for "choice"
    options: tuple[str, ...] = ()  # texts of the choices A, B, ...
    level: str | None = None  # difficulty or subject, where the data set has one
    context: str = ""  # what the question is about, shown before it


@dataclass(frozen=True)
class Layout:
    """How the rows of a data set become problems.

    Attributes:
        columns: Which column holds what.
        pattern: Of the reference answer in its column; None: all of it, or what follows ####.
        first_option: Number of the first option; None: reference answers are no numbers of options.
        asks_true_or_false: All reference answers are True or False.
        needs_answers: Whether a row without a reference answer is unfit.
    """

    columns: Columns
    pattern: str | None = None
    first_option: int | None = None
    asks_true_or_false: bool = False
    needs_answers: bool = True

    @property
    def has_options(self) -> bool:
        """Whether the problems are multiple choice."""
        return self.columns.options is not None or self.asks_true_or_false


def find_layout(rows: "Dataset", args: DataArguments, needs_answers: bool = True) -> Layout:
    """Return how the rows of a data set become problems; all of them tell what its answers are.

    Raises:
        ValueError: As `find_columns`; a pattern that is no regular expression; numbers of options
            of which nothing tells whether they count from 0 or from 1.
    """
    columns = find_columns(rows.select(range(min(len(rows), 100))).to_list(), args, needs_answers)
    try:
        re.compile(args.answer_pattern or "")
    except re.error as error:
        raise ValueError(
            f"answer_pattern must be a regular expression: got {args.answer_pattern!r} ({error})."
        ) from error
    if columns.answer is None:
        return Layout(columns, args.answer_pattern, needs_answers=needs_answers)
    if columns.options is None:
        answers = {_fold(cell(row, columns.answer)) for row in _some_columns(rows, columns)}
        is_either = bool(answers) and answers - {""} <= {"true", "false"} and answers != {""}
        return Layout(columns, args.answer_pattern, None, is_either, needs_answers)
    layout = Layout(columns, args.answer_pattern, None, False, needs_answers)
    pairs = (
        (read_answer(row, layout), options_of(row, columns)) for row in _some_columns(rows, columns)
    )
    return Layout(
        columns, args.answer_pattern, _first_option(pairs, args.first_option), False, needs_answers
    )


def _fold(value: Any) -> str:
    return as_text(value).casefold() if isinstance(value, bool | str) or value is None else "other"


def _some_columns(rows: "Dataset", columns: Columns) -> Iterator[Row]:
    """Yield rows with what tells answers and options alone."""
    options = (columns.options,) if isinstance(columns.options, str) else columns.options or ()
    wanted = {
        name
        for each in (columns.answer, *options)
        if each
        for name in (each, each.partition(".")[0])
    }
    yield from iterate(rows.select_columns([n for n in rows.column_names if n in wanted]))


def iterate(rows: "Dataset") -> Iterator[Row]:
    """Yield the rows of a data set, a thousand read at a time."""
    for batch in rows.iter(1000):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def _first_option(pairs: Iterable[tuple[Any, dict[str, str]]], given: int | None) -> int | None:
    """Return the number of the first option where reference answers number options; None: they are
    labels or texts.

    A number is a place, as 2 for the third of `["1", "2", "0"]`, unless all are labels, or it is
    text and all are texts of options.
    """
    numbers = [
        (int(text), len(options), text in options, option_place(text, options) is not None, answer)
        for answer, options in pairs
        if options and (text := as_text(answer)).isdecimal()
    ]
    if given is not None or not numbers:
        return given
    values, counts, are_labels, are_known, answers = zip(*numbers, strict=True)
    is_beyond = any(value > count for value, count in zip(values, counts, strict=True))
    are_texts = all(are_known) and (is_beyond or all(isinstance(each, str) for each in answers))
    if all(are_labels) or are_texts or is_beyond:
        return None
    from_0, from_1 = 0 in values, any(map(int.__eq__, values, counts))
    if from_0 == from_1:
        why = "0 and the number of all options occur" if from_0 else "no row tells which"
        raise ValueError(
            f"The reference answers number the options from 0 or from 1, and {why}. Set"
            " --first_option 0 or --first_option 1, or write letters."
        )
    return 0 if from_0 else 1


# One row


def read_problem(row: Row, place: int, layout: Layout, name: str = "") -> Problem:
    """Return the problem of a row; its id is the row's own, or NAME-PLACE.

    Raises:
        ValueError: The row has no question, or no reference answer that can be read; the text says
            which, in plural.
    """
    columns = layout.columns
    question = cell(row, columns.question)
    answer = read_answer(row, layout) if columns.answer else ""
    if is_messages(question):
        question, last = _split(read_messages(question))
        answer = answer if columns.answer else _cut(last, layout.pattern)
    else:
        question = as_text(question)
    options = TRUE_OR_FALSE if layout.asks_true_or_false else options_of(row, columns)
    if not question:
        raise ValueError("have no question")
    if layout.needs_answers and layout.has_options:
        answer = _letter(answer, options, layout.first_option)
    elif layout.needs_answers and not as_text(answer):
        raise ValueError("have no reference answer")
    return Problem(
        id=as_text(cell(row, columns.id)) or f"{name}-{place}",
        question=question,
        solution=as_text(answer),
        options=tuple(options.values()),
        level=_joined(cell(row, columns.level), ", ") or None,
        context=_joined(cell(row, columns.context), "\n"),
    )


def read_answer(row: Row, layout: Layout) -> Any:
    """Return the reference answer of a row: a number, True, False or a text.

    Raises:
        ValueError: It is a dictionary.
    """
    value = cell(row, layout.columns.answer)
    if is_messages(value):
        value = read_messages(value)[-1]["content"]
    if isinstance(value, dict):
        raise ValueError(
            f"have dictionaries for reference answers: name a field, --dataset_solution_column"
            f" {layout.columns.answer}.{next(iter(value), 'FIELD')}"
        )
    if isinstance(value, list | tuple):  # SQuAD has the same answer of several readers
        value = ", ".join(dict.fromkeys(map(as_text, value)))
    return _cut(value, layout.pattern) if isinstance(value, str) else value


def _cut(text: str, pattern: str | None) -> str:
    """Return the last match of a pattern, or what stands behind GSM8K's ####."""
    matches = [*re.finditer(pattern or _MARKED, text)]
    if not matches:
        return "" if pattern else text.strip()
    return (matches[-1][1 if matches[-1].re.groups else 0] or "").strip()


def options_of(row: Row, columns: Columns) -> dict[str, str]:
    """Return the texts of a row's options by label; none: it has none."""
    if isinstance(columns.options, tuple):
        return read_options([cell(row, name) for name in columns.options])
    return read_options(cell(row, columns.options))


def _letter(answer: Any, options: dict[str, str], first: int | None) -> str:
    text = as_text(answer)
    if len(options) < 2 or len(options) > len(ascii_uppercase):
        raise ValueError(f"have {len(options)} options: 2 to 26 are needed, a letter each")
    if not text:
        raise ValueError("have no reference answer")
    is_number = first is not None and text.isdecimal()
    place = int(text) - (first or 0) if is_number else option_place(text, options)
    if place is None or not 0 <= place < len(options):
        raise ValueError(
            f"have reference answers that are none of the options, such as {text[:40]!r}: name"
            " another column with --dataset_solution_column, or set --first_option for numbers"
        )
    return ascii_uppercase[place]


def _joined(value: Any, mark: str) -> str:
    if isinstance(value, list | tuple):
        return mark.join(map(as_text, value))
    return as_text(value)


def _split(messages: list[Message]) -> tuple[str | list[Message], str]:
    """Return the prompt and the answer behind it. One message of a user that asks for no form of
    an answer is a question, as text is."""
    answer = ""
    if messages[-1]["role"] == "assistant":
        *messages, last = messages
        answer = last["content"]
    if len(messages) == 1 and form_asked_for(messages[0]["content"]) is None:
        return messages[0]["content"].strip(), answer
    return messages, answer
